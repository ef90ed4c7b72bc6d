"""Runs all code of docs/python.md in order in one process, as a reader would."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from launching import ROOT

CHECKS = """
assert 0 <= result.metrics["eval_accuracy"] <= 1 and result.steps == 6
assert [record["text"] for record in records] == ["A fine pair of boots.", "It broke at once."]
assert "did you mean train.learning_rate?" in problems[0], problems
lines = open("toolkit.log").read().splitlines()
assert lines[-1].startswith("Model, report and predictions are in outputs/logged/"), lines
"""


@pytest.mark.slow
def test_the_page_runs_and_prints_nothing_but_its_own(tmp_path):
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) >= 6
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "page.py").write_text("\n".join([*blocks, CHECKS]), encoding="utf-8")
    done = subprocess.run([sys.executable, "page.py"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"0\.001 \d\.\d+\n0\.003 \d\.\d+\n", done.stdout)
    assert done.stderr == ""

"""The comparison of two checkouts, bit for bit: it finds what differs, and nothing in a checkout and itself."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT
from packages import copy_repository

SCRIPT = ROOT / "benchmarks" / "scripts" / "compare_weights.py"


def compare(other: Path, *only: str):
    command = [sys.executable, SCRIPT, other, "--only", *only]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_verdicts_name_the_files_that_differ_and_the_runs_that_failed(tmp_path) -> None:
    def write(**runs: str) -> None:
        for name, content in runs.items():
            folder = tmp_path / name.replace("_", "/qa/loop/")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hashes.json").write_text(json.dumps({"model.safetensors": content, "predictions.jsonl": "p"}))

    verdict = runpy.run_path(str(SCRIPT))["verdict"]
    write(this_one="a", other_one="a", this_resumed="a", other_resumed="a", this_two="a")
    assert [verdict(f"qa/loop/{kind}", tmp_path) for kind in ("one", "resumed")] == ["equal", "equal"]
    assert verdict("qa/loop/two", tmp_path) == "failed: other/qa/loop/two"
    write(other_two="b", this_resumed="b", other_resumed="b")
    assert verdict("qa/loop/two", tmp_path) == "differs: model.safetensors"
    after = [f"model.safetensors after a stop in {side} checkout" for side in ("this", "other")]
    assert verdict("qa/loop/resumed", tmp_path) == f"differs: {', '.join(after)}"


@pytest.mark.benchmarks
def test_a_checkout_equals_itself() -> None:
    found = compare(ROOT, "reviews/loop")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "3 of 3 are equal" in found.stdout


@pytest.mark.benchmarks
def test_a_learning_rate_that_is_a_little_larger_is_found(tmp_path) -> None:
    other = copy_repository(tmp_path / "other")
    config = other / "recipes" / "configs" / "reviews" / "smoke.yaml"
    text = config.read_text(encoding="utf-8")
    assert "learning_rate: 1.0e-3" in text
    config.write_text(text.replace("learning_rate: 1.0e-3", "learning_rate: 1.0001e-3"), encoding="utf-8")
    found = compare(other, "reviews/loop/one")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "differs: model.safetensors, predictions.jsonl" in found.stdout

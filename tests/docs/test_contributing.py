"""The steps of CONTRIBUTING.md, applied to a copy of the repository and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from page_blocks import Block, apply, blocks_of, commands

ROOT = Path(__file__).resolve().parents[2]


def sections() -> dict[str, list[Block]]:
    """Returns the code blocks under each heading that begins with "How to add"."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = {}
    for part in re.split(r"^## ", text, flags=re.M):
        title, _, body = part.partition("\n")
        if title.startswith("How to add"):
            found[title.removeprefix("How to add ")] = blocks_of(body)
    return found


SECTIONS = sections()


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """Returns a copy of the repository with all steps applied."""
    root = tmp_path_factory.mktemp("contributing")
    for name in ("toolkit", "recipes", "tests", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for blocks in SECTIONS.values():
        apply(blocks, root)
    return root


def run_all(title: str, root: Path) -> list[tuple[int, CompletedProcess[str]]]:
    """Runs a section's commands in order, up to the first with an unexpected exit code."""
    done = []
    for command, code in commands(SECTIONS[title]):
        environ = {**os.environ, "PYTHONPATH": str(root)}
        result = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=600)
        done.append((code, result))
        if result.returncode != code:
            break
    return done


@pytest.fixture(scope="module")
def outcomes(copy: Path) -> dict[str, list[tuple[int, CompletedProcess[str]]]]:
    """Returns the results of each section's commands; sections run in parallel."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(SECTIONS, pool.map(partial(run_all, root=copy), SECTIONS), strict=True))


def test_the_steps_fit_the_code(copy) -> None:
    assert set(SECTIONS) >= {"a task", "an optimizer", "a metric", "a setting"}
    assert "score_decimals" in (copy / "recipes/reviews.py").read_text(encoding="utf-8")


@pytest.mark.slow  # every section's commands are processes of their own
@pytest.mark.parametrize("title", ["a task", "an optimizer", "a metric", "a setting"])
def test_the_steps_work(outcomes, title: str) -> None:
    assert len(outcomes[title]) >= 2
    for code, done in outcomes[title]:
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_a_new_setting_is_explained_and_checked(outcomes) -> None:
    explained, refused = (done for _, done in outcomes["a setting"][:2])
    assert re.search(r"^task\.score_decimals +2 +override$", explained.stdout, re.M), explained.stdout
    assert "task.score_decimals: received 10, " in refused.stderr
    assert "Traceback" not in refused.stderr

"""The steps of CONTRIBUTING.md, applied to a copy of the repository and run.

The info string of a code block names its file: a `diff` block changes lines that must be in that file exactly once, a
block `(at the end)` is added to it, any other is the whole file. `bash` blocks are run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow  # every section's commands are processes of their own

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"^ *```(?P<kind>\w+)(?: (?P<file>\S+))?(?P<end> \(at the end\))?\n(?P<text>.*?)^ *```$", flags=re.M | re.S
)


class Block(NamedTuple):
    kind: str
    file: str | None
    at_the_end: bool
    text: str


def sections() -> dict[str, list[Block]]:
    """Returns the code blocks under each heading that begins with "How to add"."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = {}
    for part in re.split(r"^## ", text, flags=re.M):
        title, _, body = part.partition("\n")
        if title.startswith("How to add"):
            found[title.removeprefix("How to add ")] = [
                Block(m["kind"], m["file"], bool(m["end"]), textwrap.dedent(m["text"])) for m in BLOCK.finditer(body)
            ]
    return found


SECTIONS = sections()


def change(text: str, diff: str) -> str:
    """Applies a diff without line numbers; its removed and context lines must occur in the text exactly once."""
    lines = diff.splitlines()
    assert all(line[:1] in ("", " ", "-", "+") for line in lines), diff
    old = "\n".join(line[1:] for line in lines if line[:1] != "+") + "\n"
    new = "\n".join(line[1:] for line in lines if line[:1] != "-") + "\n"
    assert text.count(old) == 1, f"found {text.count(old)} times, not once:\n{old}"
    return text.replace(old, new)


def apply(block: Block, root: Path) -> None:
    path = root / str(block.file)
    if block.kind == "diff":
        path.write_text(change(path.read_text(encoding="utf-8"), block.text), encoding="utf-8")
    elif block.at_the_end:
        path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{block.text}", encoding="utf-8")
    else:
        assert not path.exists(), f"{block.file} is already there: the steps need another example"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """Returns a copy of the repository with all steps applied."""
    root = tmp_path_factory.mktemp("contributing")
    for name in ("toolkit", "recipes", "tests", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for blocks in SECTIONS.values():
        for block in blocks:
            if block.file is not None:
                apply(block, root)
    return root


def commands(title: str) -> list[tuple[list[str], int]]:
    """Yields the commands of a section with their expected exit codes, from their comments (default 0)."""
    programs = {"python": [sys.executable], "toolkit": [sys.executable, "-m", "toolkit"]}
    found = []
    for block in SECTIONS[title]:
        for line in block.text.splitlines() if block.kind == "bash" else ():
            code = re.search(r"# exit code (\d+)$", line)
            program, *arguments = shlex.split(line, comments=True)
            found.append(([*programs[program], *arguments], int(code[1]) if code else 0))
    return found


def run_all(title: str, root: Path) -> list[tuple[int, CompletedProcess[str]]]:
    """Runs a section's commands in order, up to the first with an unexpected exit code."""
    done = []
    for command, code in commands(title):
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


@pytest.mark.parametrize("title", ["a task", "an optimizer", "a metric", "a setting"])
def test_the_steps_work(outcomes, title: str) -> None:
    assert len(outcomes[title]) >= 2
    for code, done in outcomes[title]:
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}"


def test_a_new_setting_is_explained_and_checked(outcomes) -> None:
    explained, refused = (done for _, done in outcomes["a setting"][:2])
    assert re.search(r"^task\.score_decimals +2 +override$", explained.stdout, re.M), explained.stdout
    assert "task.score_decimals: received 10, " in refused.stderr
    assert "Traceback" not in refused.stderr

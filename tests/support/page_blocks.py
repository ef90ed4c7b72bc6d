"""Code blocks of pages that are written into files, and commands of pages that are run.

The info string of a code block names its file: a `diff` block changes lines that must be in that file exactly once, a
block `(at the end)` is added to it, any other is the whole file. `bash` blocks are commands.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(
    r"^ *```(?P<kind>\w+)(?: (?P<file>\S+))?(?P<end> \(at the end\))?\n(?P<text>.*?)^ *```$", flags=re.M | re.S
)
_PROGRAMS = {"python": [sys.executable], "toolkit": [sys.executable, "-m", "toolkit"]}


class Block(NamedTuple):
    kind: str
    file: str | None
    at_the_end: bool
    text: str


def blocks_of(text: str) -> list[Block]:
    return [Block(m["kind"], m["file"], bool(m["end"]), textwrap.dedent(m["text"])) for m in _BLOCK.finditer(text)]


def change(text: str, diff: str) -> str:
    """Applies a diff without line numbers; its removed and context lines must occur in the text exactly once."""
    lines = diff.splitlines()
    assert all(line[:1] in ("", " ", "-", "+") for line in lines), diff
    old = "\n".join(line[1:] for line in lines if line[:1] != "+") + "\n"
    new = "\n".join(line[1:] for line in lines if line[:1] != "-") + "\n"
    assert text.count(old) == 1, f"found {text.count(old)} times, not once:\n{old}"
    return text.replace(old, new)


def apply(blocks: Iterable[Block], root: Path) -> None:
    """Writes the blocks that name a file below a folder."""
    for block in blocks:
        if block.file is None:
            continue
        path = root / block.file
        if block.kind == "diff":
            path.write_text(change(path.read_text(encoding="utf-8"), block.text), encoding="utf-8")
        elif block.at_the_end:
            path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{block.text}", encoding="utf-8")
        else:
            assert not path.exists(), f"{block.file} is already there: the steps need another example"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


def commands(blocks: Iterable[Block]) -> list[tuple[list[str], int]]:
    """Returns the commands of `bash` blocks with their expected exit codes, from their comments (default 0)."""
    found = []
    for line in (line for block in blocks if block.kind == "bash" for line in block.text.splitlines()):
        code = re.search(r"# exit code (\d+)$", line)
        program, *arguments = shlex.split(line, comments=True)
        found.append(([*_PROGRAMS[program], *arguments], int(code[1]) if code else 0))
    return found

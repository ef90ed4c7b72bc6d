"""The sha256 of what a run writes at its end, and whether the files are still as they were written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError
from toolkit.base.files import read_file
from toolkit.base.run_folder import RunFolder
from toolkit.catalog.checksums import file_sha256

PATTERNS = ("model/**/*", "predictions*.jsonl", "report.*", "curves.svg", "confusion_*.png")
"""Files that are written at the end of a run; the model card is meant to be edited."""


def digests(folder: Path) -> dict[str, str]:
    """Returns the sha256 of each file that a run has written at its end, by its path in the run's folder."""
    card = RunFolder(folder).model_card
    files = sorted(file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file() and file != card)
    return {file.relative_to(folder).as_posix(): file_sha256(file) for file in files}


def damaged(folder: Path, facts: Mapping[str, Any], within: str = "") -> list[str]:
    """Returns what is wrong with the files of a finished run, one phrase for each file.

    Args:
        folder: the run's folder.
        facts: content of its `run.json`; that of an older version has no checksums.
        within: only files whose path begins with this.
    """
    problems = []
    for name, expected in facts.get("files", {}).items():
        if not name.startswith(within):
            continue
        file = folder / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif file_sha256(file) != expected:
            problems.append(f"{name} is not as it was written (its sha256 differs)")
    return problems


def refuse_damaged_model(folder: Path) -> None:
    """Refuses a finished run whose model is not as it was written.

    Raises:
        InputError: naming the files.
    """
    facts = json.loads(read_file(RunFolder(folder).facts))
    if problems := damaged(folder, facts, "model/"):
        raise InputError(f"{folder}: the model is damaged: {'; '.join(problems)}. `toolkit verify` checks all files")

"""Reads, copies, truncates and verifies `metrics.jsonl`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.base.console import warn
from toolkit.base.disk import why
from toolkit.base.errors import RunError
from toolkit.base.files import read_file, write_bytes


def bring_metrics(former: Path, path: Path) -> None:
    """Copies the `metrics.jsonl` of a run that is resumed in another folder, unless that folder has one.

    Args:
        former: the file of the previous run; need not exist.
        path: the file of this run.

    Raises:
        RunError: if it cannot be copied.
    """
    try:
        if former.exists() and not path.exists():
            write_bytes(path, read_file(former))
    except OSError as error:
        raise RunError(f"cannot copy {former.absolute()} to {path.absolute()}: {why(error, path)}") from error


def truncate_metrics(path: Path, step: int) -> None:
    """Truncates `metrics.jsonl` to the lines up to a step; a missing file is ignored.

    An incomplete last line of a run that was killed is removed, too. Any other damaged line is kept in
    `metrics.jsonl.damaged`, with a warning.

    Raises:
        RunError: if the file cannot be rewritten.
    """
    try:
        if not path.exists():
            return
        lines = [(number, line, _step(line)) for number, line in enumerate(read_file(path).split(b"\n"), start=1)]
        kept = [(number, line) for number, line, found in lines if found is not None and found <= step]
        last = kept[-1][0] if kept else 0
        damaged = [(number, line) for number, line, found in lines if found is None and number < last]
        if damaged:
            aside = path.with_name(f"{path.name}.damaged")
            with aside.open("ab") as file:
                file.writelines(line + b"\n" for _, line in damaged)
            numbers = ", ".join(str(number) for number, _ in damaged)
            warn(f"{path}: line {numbers} cannot be read and was moved to {aside.name}")
        write_bytes(path, b"".join(line + b"\n" for _, line in kept))
    except OSError as error:
        raise RunError(f"cannot truncate {path.absolute()} to step {step}: {why(error, path)}") from error


def mark_of(path: Path) -> dict[str, Any]:
    """Returns size and sha256 of `metrics.jsonl` as it is now; a missing file is an empty one.

    Raises:
        OSError: if the file cannot be read.
    """
    content = path.read_bytes() if path.exists() else b""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def has_changed(path: Path, mark: Mapping[str, Any] | None) -> bool:
    """Whether the lines that `metrics.jsonl` had when `mark_of` returned `mark` have changed.

    Args:
        path: the file; lines may have been added.
        mark: from a checkpoint; those of older versions have none.

    Raises:
        OSError: if the file cannot be read.
    """
    if mark is None:
        return False
    content = path.read_bytes() if path.exists() else b""
    return hashlib.sha256(content[: mark["bytes"]]).hexdigest() != mark["sha256"]


def _step(line: bytes) -> float | None:
    """Returns the step of a metrics line, None for any other line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if a line is not JSON.
    """
    return [json.loads(line) for line in read_file(path).decode().splitlines()]

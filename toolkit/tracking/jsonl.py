"""Reads, copies, truncates and verifies `metrics.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.base.console import warn
from toolkit.base.errors import RunError
from toolkit.base.files import parse_json, read_file, sha256, why, write_bytes
from toolkit.base.run_folder import RunFolder


def bring_metrics(former: Path, path: Path) -> None:
    """Copies the `metrics.jsonl` of a run, if any, to that of one that resumes it in another folder, unless it has one.

    Raises RunError if it cannot be copied.
    """
    try:
        if former.exists() and not path.exists():
            write_bytes(path, read_file(former))
    except OSError as error:
        raise RunError(f"cannot copy {former.absolute()} to {path.absolute()}: {why(error, path)}") from error


def truncate_metrics(path: Path, step: int, mark: Mapping[str, Any] | None = None) -> None:
    """Truncates `metrics.jsonl` to the lines up to a step; a missing file is ignored.

    The incomplete last line of a killed run is removed. If anything else is damaged or `mark` (`mark_of` the file at
    the checkpoint) does not fit, the former content is kept in `metrics.jsonl.damaged`, with a warning.
    """
    try:
        if not path.exists():
            if has_changed(path, mark):
                warn(f"{path} is missing: the lines before step {step} are lost")
            return
        content = read_file(path)
        lines = [(number, line, _step(line)) for number, line in enumerate(content.split(b"\n"), start=1)]
        kept = [(number, line) for number, line, found in lines if found is not None and found <= step]
        last = kept[-1][0] if kept else 0
        damaged = [str(number) for number, _, found in lines if found is None and number < last]
        if damaged or has_changed(path, mark):
            aside = RunFolder(path.parent).metrics_damaged
            former = read_file(aside) if aside.exists() else b""
            write_bytes(aside, former + content)
            which = f"line {', '.join(damaged)} cannot be read" if damaged else f"lines before step {step} have changed"
            warn(f"{path}: {which}; the file as it was is kept in {aside.name}")
        write_bytes(path, b"".join(line + b"\n" for _, line in kept))
    except OSError as error:
        raise RunError(f"cannot truncate {path.absolute()} to step {step}: {why(error, path)}") from error


def mark_of(path: Path) -> dict[str, Any]:
    """Returns size and sha256 of `metrics.jsonl` as it is now; a missing file is an empty one.

    Raises OSError if the file cannot be read.
    """
    content = read_file(path) if path.exists() else b""
    return {"bytes": len(content), "sha256": sha256(content)}


def has_changed(path: Path, mark: Mapping[str, Any] | None) -> bool:
    """Whether the lines that `metrics.jsonl` had when `mark_of` returned `mark` have changed; others may be new.

    Checkpoints of older versions have no mark. Raises OSError if the file cannot be read.
    """
    if mark is None:
        return False
    content = read_file(path) if path.exists() else b""
    return sha256(content[: mark["bytes"]]) != mark["sha256"]


def _step(line: bytes) -> float | None:
    """Returns the step of a line of metrics; None for any other line."""
    try:
        step = parse_json(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int | float) and math.isfinite(step) else None


def wrong_lines(path: Path, whole: bool) -> list[int]:
    """Returns the numbers of the lines of `metrics.jsonl` that cannot be read.

    A run that was killed may have written half of the last one, which counts if the file must be `whole`. Raises
    OSError if the file cannot be read.
    """
    *lines, rest = read_file(path).split(b"\n")
    lines += [rest] if whole and rest else []
    return [number for number, line in enumerate(lines, start=1) if _step(line) is None]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`.

    Raises OSError if the file cannot be read; ValueError if a line is not JSON.
    """
    return [parse_json(line) for line in read_file(path).split(b"\n") if line]


def readable_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the numbers in the lines of `metrics.jsonl` that can be read; a missing file has none.

    Raises OSError if the file cannot be read.
    """
    content = read_file(path) if path.exists() else b""
    lines = [parse_json(line) for line in content.split(b"\n") if _step(line) is not None]
    return [{key: value for key, value in line.items() if isinstance(value, int | float | None)} for line in lines]

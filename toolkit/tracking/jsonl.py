"""Reads, copies and truncates `metrics.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.base.errors import RunError
from toolkit.base.files import written_whole


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
            with written_whole(path, "wb") as file:
                file.write(former.read_bytes())
    except OSError as error:
        raise RunError(f"cannot copy {former.absolute()} to {path.absolute()}: {error.strerror}") from error


def truncate_metrics(path: Path, step: int) -> None:
    """Truncates `metrics.jsonl` to the lines up to a step; a missing file is ignored.

    An incomplete last line of a run that was killed is removed, too.

    Raises:
        RunError: if the file cannot be rewritten.
    """
    try:
        if not path.exists():
            return
        kept = [line + b"\n" for line in path.read_bytes().split(b"\n") if _step(line) <= step]
        with written_whole(path, "wb") as file:
            file.writelines(kept)
    except OSError as error:
        raise RunError(f"cannot truncate {path.absolute()} to step {step}: {error.strerror}") from error


def _step(line: bytes) -> float:
    """Returns the step of a metrics line, infinity for any other line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if a line is not JSON.
    """
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

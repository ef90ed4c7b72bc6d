"""The lines of `metrics.jsonl`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from toolkit.base.errors import RunError


def bring_metrics(former: Path, output_dir: Path) -> None:
    """Copies `metrics.jsonl` of a run that goes on in another folder."""
    source, target = former / "metrics.jsonl", output_dir / "metrics.jsonl"
    if source.exists() and not target.exists():
        shutil.copyfile(source, target)


def truncate_metrics(path: Path, step: int) -> None:
    """Cuts `metrics.jsonl` back to a step, atomically; a missing file is fine.

    Keeps the whole lines whose `step` is at most this, and so drops a last line that was torn when the run died.

    Raises:
        RunError: when the file cannot be rewritten.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if not path.exists():
            return
        kept = [line + b"\n" for line in path.read_bytes().split(b"\n") if _step(line) <= step]
        with temporary.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot cut {path.absolute()} back to step {step}: {error.strerror}") from error


def _step(line: bytes) -> float:
    """Returns the step of a metrics line, infinity for what is no such line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

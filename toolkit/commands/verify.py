"""Verify every file of a run: `toolkit verify RUN`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from toolkit.commands import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run."""
    _options.add(parser, "run")


def work(arguments: argparse.Namespace) -> None:
    """Verifies results, checkpoints and the files that a resume reads.

    Raises:
        InputError: if the folder is not that of a run.
        RunError: if a file is damaged; names all of them.
    """
    from toolkit.base.console import say
    from toolkit.base.errors import InputError, RunError
    from toolkit.base.run_folder import RunFolder

    folder = Path(arguments.run).expanduser()
    if not RunFolder(folder).facts.is_file():
        raise InputError(f"{folder}: not a run, missing run.json (tried {folder.absolute()})")
    problems = list(damages(folder))
    if problems:
        raise RunError("\n".join([f"{folder} is damaged:", *(f"  - {problem}" for problem in problems)]))
    say(f"{folder}: every file is as it was written")


def damages(folder: Path) -> Iterator[str]:
    """Yields one phrase for each damaged file of a run."""
    from toolkit.base.errors import CheckpointError, InputError
    from toolkit.base.run_folder import RunFolder
    from toolkit.checkpoint.manifest import verify
    from toolkit.checkpoint.state import SavedState
    from toolkit.checkpoint.store import open_checkpoint, steps
    from toolkit.report.intact import damaged
    from toolkit.report.runs import read_record
    from toolkit.tracking.jsonl import has_changed

    files, sealed = RunFolder(folder), False
    try:
        record = read_record(folder)
    except InputError as error:
        yield str(error)
    else:
        yield from damaged(folder, record.facts)
        sealed = files.metrics.name in record.facts.get("files", {})
        if record.finished and "files" not in record.facts:
            yield "run.json has no checksums: the run is of an older version, and its model was not verified"
    if files.metrics.exists():
        yield from _wrong_lines(files.metrics, sealed)
    if files.checkpoints.is_dir():
        whole = None
        for _, checkpoint in steps(files.checkpoints):
            problems = verify(checkpoint)
            whole = whole if problems else checkpoint
            yield from (f"{checkpoint.relative_to(folder)}: {problem}" for problem in problems)
        try:
            mark = None if whole is None else SavedState.from_json(open_checkpoint(whole).state).metrics
            if has_changed(files.metrics, mark):
                yield f"{files.metrics.name} is not as it was when the newest checkpoint was written"
        except CheckpointError as error:
            yield str(error)


def _wrong_lines(metrics: Path, sealed: bool) -> Iterator[str]:
    """Yields a phrase for each line that cannot be read; a killed run may have written half of the last one."""
    lines = metrics.read_bytes().splitlines(keepends=True)
    if not sealed and lines and not lines[-1].endswith(b"\n"):
        del lines[-1]
    for number, line in enumerate(lines, start=1):
        try:
            json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            yield f"{metrics.name}: line {number} cannot be read"

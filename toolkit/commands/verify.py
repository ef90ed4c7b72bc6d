"""Verify every file of a run: `toolkit verify RUN`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from toolkit.base.files import expanded
from toolkit.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run."""
    options.add(parser, "run")


def work(arguments: argparse.Namespace) -> None:
    """Verifies results, checkpoints and the files that a resume reads.

    Raises:
        InputError: if the folder holds nothing of a run.
        RunError: if a file is damaged; names all of them.
    """
    from toolkit.base.console import say
    from toolkit.base.errors import InputError, RunError
    from toolkit.base.files import kind_of
    from toolkit.base.run_folder import RunFolder

    folder = expanded(arguments.run)
    files = RunFolder(folder)
    if not any(map(kind_of, (files.facts, files.config, files.checkpoints, files.model))):
        raise InputError(f"{folder}: not a run, missing run.json (tried {folder.absolute()})")
    problems = list(dict.fromkeys(damages(folder)))
    if problems:
        raise RunError("\n".join([f"{folder} is damaged:", *(f"  - {problem}" for problem in problems)]))
    say(f"{folder}: every file is as it was written")


def damages(folder: Path) -> Iterator[str]:
    """Yields one phrase for each damaged file of a run."""
    from toolkit.base.errors import CheckpointError, InputError
    from toolkit.base.run_folder import RunFolder
    from toolkit.checkpoint.manifest import reason, verify
    from toolkit.checkpoint.state import SavedState
    from toolkit.checkpoint.store import open_checkpoint, steps
    from toolkit.report.facts import damaged
    from toolkit.report.runs import read_record
    from toolkit.tracking.jsonl import has_changed, wrong_lines

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
    mark = None
    if files.checkpoints.is_dir():
        whole = None
        for _, checkpoint in steps(files.checkpoints):
            problems = verify(checkpoint)
            whole = whole if problems else checkpoint
            yield from (f"{checkpoint.relative_to(folder)}: {problem}" for problem in problems)
        try:
            mark = None if whole is None else SavedState.from_json(open_checkpoint(whole).state).metrics
        except CheckpointError as error:
            yield str(error)
    try:
        if files.metrics.exists():
            yield from (f"{files.metrics.name}: line {n} cannot be read" for n in wrong_lines(files.metrics, sealed))
        if has_changed(files.metrics, mark):
            yield f"{files.metrics.name} is not as it was when the newest checkpoint was written"
    except OSError as error:
        yield f"{files.metrics.name}: {reason(error)}"

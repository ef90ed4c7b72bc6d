"""Measure collective operations: `toolkit collectives [--processes N] [--launch FILE]`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toolkit.base.errors import RunError
from toolkit.commands import options
from toolkit.commands.options import at_least

PROCESSES = 2
TIMEOUT_SECONDS = 600.0
"""Without it, processes that cannot reach each other would wait for half an hour."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the processes and the folder."""
    options.add(parser, "--launch")
    options.add(parser, "--processes", default_text=f"as in the --launch file, or {PROCESSES}", type=at_least(2))
    options.add(parser, "--output-dir", default_text="outputs/collectives")


def work(arguments: argparse.Namespace) -> None:
    """Times the operations, prints what they cost and writes it.

    Raises:
        InputError: if arguments are invalid.
        RunError: if the processes cannot reach each other.
    """
    from toolkit.base.console import say
    from toolkit.document.render import print_table
    from toolkit.lab import collectives
    from toolkit.lab.collectives import SIZES
    from toolkit.lab.jobs.jobs import Launch

    launch = Launch.of(arguments.launch, arguments.processes or (PROCESSES if arguments.launch is None else None))
    launch.check(2)
    output = options.output_folder(arguments.output_dir or "outputs/collectives")
    measured = _measured(launch, {"sizes": SIZES})
    facts = {"processes": launch.processes, "command": shlex.join(arguments.command)}
    found = collectives.found_of(measured, SIZES, facts)
    collectives.write(found, output)
    for table in (*collectives.tables(found), collectives.summary(found)):
        print_table(table)
        say("")
    say(f"written to {output}/collectives.html, .md, .json and .svg")


def _measured(launch: Any, job: dict[str, Any]) -> dict[str, Any]:
    from toolkit.lab.jobs.jobs import Trial, run_trials

    with TemporaryDirectory(prefix="collectives-") as name:
        folder = Path(name)
        trial = Trial("collectives", job, folder / "outcome.json")
        (outcome,) = run_trials(
            [trial], folder / "collectives.log", launch.processes, launch.file, launch.environ, TIMEOUT_SECONDS
        )
    if outcome.error is not None:
        raise RunError(f"these processes cannot exchange data: {outcome.error}")
    measured: dict[str, Any] = outcome.result
    return measured

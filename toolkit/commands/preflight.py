"""Check this machine for a run: `toolkit preflight RECIPE --config FILE [--processes N] [section.key=value ...]`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolkit.commands import _recipe_config, options

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.checks.check import Findings
    from toolkit.config.sections import Config
    from toolkit.lab.preflight import Found

SIZES = "the sizes in parallel"
"""What `validate` cannot check without processes, and this command checks with `--processes`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML and the number of processes."""
    _recipe_config.add_recipe(parser)
    options.add(parser, "--processes", default=1, default_text="1; those on this machine")


def work(arguments: argparse.Namespace) -> None:
    """Checks everything that a run needs of this machine, and prints what is there.

    Raises:
        ConfigError: if the settings cannot be read.
        InputError: with all problems.
    """
    _recipe_config.find(arguments)
    from toolkit.base.console import quiet_libraries
    from toolkit.base.errors import InputError
    from toolkit.recipe import load_settings, load_task_type, validate

    task_type = load_task_type(arguments.recipe)
    quiet_libraries()
    cfg = load_settings(task_type, arguments.config, arguments.overrides).config
    from toolkit.lab.preflight import connect

    connect(cfg)
    findings = validate(task_type, arguments.config, arguments.overrides)
    table = list(_ask(cfg, task_type(cfg), findings, arguments.processes))
    problems = [*findings.problems, *(problem for found in table for problem in found.problems)]
    unchecked = [f"  not checked: {each}" for each in findings.unchecked if not each.startswith(SIZES)]
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise InputError("\n".join([f"{count} on this machine:", *(f"  - {each}" for each in problems), *unchecked]))
    _show(table)
    print("\n".join([f"{arguments.config}: this machine can start the run", *unchecked]))


def _ask(cfg: Config, task: Task, findings: Findings, processes: int) -> Iterator[Found]:
    """Yields what each check of the machine finds."""
    from toolkit.base.errors import problems_of
    from toolkit.checks.model import process_problems
    from toolkit.checks.run import size_problems
    from toolkit.lab import preflight
    from toolkit.lab.preflight import Found, Needs, needs_of

    world = processes * int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    yield from preflight.inputs(cfg)
    needs, reason = Needs(processes), "its settings or inputs are wrong"
    if not findings.problems:
        sizes = (*size_problems(cfg, world), *process_problems(cfg, world))
        yield Found("processes", f"{processes} here" + (f", {world} in all" if world > processes else ""), sizes)
        if not sizes:
            found: list[Needs] = []
            reasons = problems_of(lambda: found.append(needs_of(cfg, task, processes, world)))
            needs, reason = (found or [needs])[0], " ".join(reasons)
    if needs.memory is None:
        yield Found("prediction", f"none: {reason or 'DeepSpeed keeps more than is known'}")
    yield from preflight.folders(cfg, needs)
    yield from preflight.stage(cfg, task)
    yield from preflight.devices(needs)
    yield preflight.port()
    yield from preflight.trackers(cfg)


def _show(table: list[Found]) -> None:
    from rich.table import Table
    from rich.text import Text

    from toolkit.base.console import rich_console

    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(overflow="fold")
    for found in table:
        if found.shown:
            shown.add_row(Text(found.what), Text(found.shown))
    rich_console().print(shown)

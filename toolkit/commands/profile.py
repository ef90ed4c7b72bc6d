"""Profile steps of a run: `toolkit profile RECIPE --config FILE [--processes N] [section.key=value ...]`."""

from __future__ import annotations

import argparse
import gzip
import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import ConfigError, RunError
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least

if TYPE_CHECKING:
    from toolkit.lab.jobs.jobs import Launch

SKIPPED, LEAST_SKIPPED, STEPS = 5, 2, 5
"""What split models send is counted in their first two steps, which slows these down."""
COMPRESSION = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, and which steps to measure."""
    _recipe_config.add_recipe(parser)
    options.add(
        parser, "--skip", default_text=f"{SKIPPED}, at least {LEAST_SKIPPED}", default=SKIPPED,
        type=at_least(LEAST_SKIPPED),
    )  # fmt: skip
    options.add(parser, "--steps", default_text=f"{STEPS} to time, and as many to trace", default=STEPS)
    options.add_launch(parser)
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-profile")


def work(arguments: argparse.Namespace) -> None:
    """Measures the steps, prints where their time goes and what to change, and writes it.

    Raises:
        InputError: if arguments are invalid.
        ToolkitError: if the settings are invalid.
        RunError: if training fails.
    """
    task_type, loaded = _recipe_config.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.files import write_bytes
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.config.keys import written
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.jobs.training import FEW_STEPS, unfrozen_at_once
    from toolkit.lab.profile import report
    from toolkit.lab.profile.report import advice_of, found_of, is_setting

    launch = Launch.of(arguments.launch, arguments.processes)
    launch.check(1)
    settings = FEW_STEPS | {"train.max_steps": arguments.skip + 2 * arguments.steps + 1}
    overrides = [*arguments.overrides, *written(settings | unfrozen_at_once(loaded.config))]
    cfg = launch.load(task_type, arguments.config, overrides)
    refuse_wrong_launch(cfg, task_type, launch.processes)
    output = options.output_folder(arguments.output_dir or f"{loaded.config.output_dir.rstrip('/')}-profile")
    quiet_libraries()
    with TemporaryDirectory(prefix="profile-") as name:
        measured = _measured(arguments, [*overrides, f"output_dir={name}/run"], launch, Path(name))
        trace = (Path(name) / "trace.json").read_bytes()
    facts = {
        "steps": arguments.steps, "skipped": arguments.skip,
        "config": arguments.config, "command": shlex.join(arguments.command),
    }  # fmt: skip
    found = found_of(measured, facts)

    def allowed(choice: Sequence[str]) -> bool:
        if not is_setting(choice):
            return True
        try:
            launch.load(task_type, arguments.config, [*arguments.overrides, *choice])
        except ConfigError:
            return False
        return True

    found["advice"] = advice_of(found, cfg, allowed)
    report.write(found, output)
    write_bytes(output / report.TRACE, gzip.compress(trace, COMPRESSION, mtime=0))
    report.show(found)
    say(f"\nwritten to {output}/profile.html, .md, .json and {report.TRACE}")


def _measured(arguments: argparse.Namespace, overrides: list[str], launch: Launch, folder: Path) -> dict[str, Any]:
    from toolkit.lab.jobs.jobs import Trial, run_trials

    job = {
        "recipe": str(Path(arguments.recipe).absolute()),
        "config": str(Path(arguments.config).absolute()),
        "overrides": overrides,
        "skipped": arguments.skip,
        "steps": arguments.steps,
        "trace": str(folder / "trace.json"),
    }
    trial = Trial("profile", job, folder / "outcome.json")
    (outcome,) = run_trials([trial], folder / "profile.log", launch.processes, launch.file, launch.environ)
    if outcome.error is not None:
        raise RunError(outcome.error)
    measured: dict[str, Any] = outcome.result
    return measured

"""Look for what is wrong with the rows: `toolkit doctor RECIPE --config FILE [--run RUN] [section.key=value ...]`."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.base.files import expanded
from toolkit.commands import _recipe_config, options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the run whose predictions are used."""
    _recipe_config.add_recipe(parser)
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="output folder of a finished run, or of cross-validate, whose predictions show likely wrong labels",
    )
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-doctor")


def work(arguments: argparse.Namespace) -> None:
    """Examines the rows, prints what it found and writes it.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if arguments are invalid, or the run's predictions cannot be used.
        DataError: if a file cannot be read, or none of its rows can be used.
    """
    from toolkit.base.console import quiet_libraries, say

    quiet_libraries(only_data=True)
    run = expanded(arguments.run) if arguments.run else None
    _refuse_without_cleanlab(run)
    task_type, loaded = _recipe_config.load(arguments)
    from toolkit.lab.doctor import report
    from toolkit.lab.doctor.examine import examine, suggestions
    from toolkit.lab.init.overview import subject
    from toolkit.recipe import load_settings

    cfg = loaded.config
    output = options.output_folder(arguments.output_dir or f"{cfg.output_dir.rstrip('/')}-doctor")
    examined = examine(subject(task_type, cfg), run, Path(arguments.recipe))
    given = arguments.overrides
    found = {
        **asdict(examined),
        "suggestions": suggestions(
            cfg, examined, lambda more: load_settings(task_type, arguments.config, [*given, *more])
        ),
        "run": arguments.run,
        "config": arguments.config,
        "command": shlex.join(arguments.command),
    }
    report.write(found, output)
    say("\n".join(report.lines(found)))
    say(f"\nwritten to {output}/doctor.html, .md and .json")


def _refuse_without_cleanlab(run: Path | None) -> None:
    """Checks the run, and that cleanlab is there if it is needed.

    Raises:
        InputError: if there is no such folder, or cleanlab is not installed.
    """
    from importlib.util import find_spec

    if run is None:
        return
    if not run.is_dir():
        raise InputError(f"--run: there is no folder {run.absolute()}")
    if find_spec("cleanlab") is None:
        raise InputError("--run: needs cleanlab, which is not installed; pip install 'finetune-toolkit[doctor]'")

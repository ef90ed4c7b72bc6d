"""Train: `toolkit train RECIPE --config FILE [--processes N] [section.key=value ...]`.

Without a configuration: `toolkit train reviews --data reviews.csv --text-column "Review Text" --label-column Rating
--model distilbert/distilbert-base-uncased --output-dir outputs/first`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from toolkit.commands import _recipe_config, options

TOOLKIT = "import sys; del sys.argv[0]; from toolkit.commands.cli import main; main()"
"""The program of `python -c`; the whole command line follows, its first word included, as `run.json` notes it."""
SETTINGS = {
    "data": ("--data FILE", "data.train_file", ("data.train_file", "data.dataset_name")),
    "model": ("--model MODEL", "model.name_or_path", ("model.name_or_path", "model.from_config")),
    "output_dir": ("--output-dir DIR", "output_dir", ("output_dir",)),
}
"""Options that are settings: their spelling, the setting, and the settings that can be given instead. Without a
configuration they are all needed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the number of processes, and the settings that have options."""
    _recipe_config.add_recipe(parser, required=False)
    options.add(parser, "--processes", default_text="1, or as started by torchrun, srun or accelerate launch")
    options.add(parser, "--data")
    options.add(parser, "--model")
    options.add(parser, "--output-dir")
    parser.add_argument(
        "--NAME-column", metavar="COLUMN", help="your name of the task's column NAME, for example --text-column body"
    )


def rewritten(words: Sequence[str]) -> Iterator[str]:
    """Yields the words of the command line, with `--NAME-column COLUMN` as `data.columns.NAME=COLUMN`."""
    left = iter(words)
    for word in left:
        option, equals, value = word.partition("=")
        name = re.fullmatch(r"--([\w-]+)-column", option)
        if name is None:
            yield word
        else:
            yield f"data.columns.{name[1].replace('-', '_')}={value if equals else next(left, '')}"


def work(arguments: argparse.Namespace) -> None:
    """Trains in this process, or starts the ranks.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if there is no such recipe, or arguments are missing or contradict the launcher.
        ToolkitError: if the run cannot start, fails or is stopped.
        SystemExit: with the exit code of the ranks.
    """
    from toolkit.base.errors import InputError
    from toolkit.system.launcher import launched_processes, run_ranks, slurm_rank

    os.environ.update(slurm_rank())
    launched = launched_processes()
    if launched is not None and arguments.processes not in (None, launched):
        raise InputError(
            f"--processes: received {arguments.processes}, but the launcher started {launched}; remove the option"
        )
    overrides = settings(arguments)
    if launched is None and (arguments.processes or 1) > 1:
        words = [sys.argv[0], *arguments.command[1:]]
        code = run_ranks([sys.executable, "-c", TOOLKIT, *words], arguments.processes)
        sys.exit(code if code >= 0 else 1)

    from toolkit.main import run_recipe
    from toolkit.recipe import config_file, load_task_type, recipe_file

    recipe = recipe_file(arguments.recipe)
    config: Path | dict[str, Any] = config_file(recipe, arguments.config) if arguments.config else {}
    run_recipe(load_task_type(recipe), recipe, config, overrides, arguments.command)


def settings(arguments: argparse.Namespace) -> list[str]:
    """Returns the options and overrides as overrides.

    Raises:
        InputError: if there is no configuration, and settings that a run needs are missing; names all.
    """
    from toolkit.base.errors import InputError

    given = {name: getattr(arguments, name) for name in SETTINGS if getattr(arguments, name) is not None}
    missing = [
        option
        for name, (option, _, keys) in SETTINGS.items()
        if name not in given and not any(each.startswith(keys) for each in arguments.overrides)
    ]
    if missing and arguments.config is None:
        raise InputError(
            f"without --config, these are needed too: {', '.join(missing)}\n"
            f"  `toolkit explain {arguments.recipe}` lists all settings; `--config smoke` trains on sample data."
        )
    return [*(f"{SETTINGS[name][1]}={value}" for name, value in given.items()), *arguments.overrides]

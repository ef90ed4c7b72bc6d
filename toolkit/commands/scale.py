"""Measure scaling: `toolkit scale RECIPE --config FILE --processes 1,2,4 [--mode strong | weak] [KEY=VALUE ...]`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.cli_errors import EXIT_INTERRUPT
from toolkit.base.errors import ConfigError
from toolkit.base.files import expanded
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least
from toolkit.config.sections import Config

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.scale import Scale

ROUNDS, SCALE_STEPS, LEAST_SCALE_STEPS = 3, 20, 3
PROCESSES = (1, 2)


def processes(text: str) -> tuple[int, ...]:
    """Argparse `type` for different numbers of processes, which it puts in order."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words) or len({*map(int, words)}) < len(words):
        raise argparse.ArgumentTypeError(f"received {text}, must be different numbers from 1 on, for instance 1,2,4")
    if len(words) < 2:
        raise argparse.ArgumentTypeError(f"received {text}, must be two numbers or more, for instance 1,2,4")
    return tuple(sorted(map(int, words)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the processes, and how often they run."""
    _recipe_config.add_recipe(parser)
    options.add(parser, "--launch")
    options.add(parser, "--processes", default_text="1,2; give two numbers or more", default=PROCESSES, type=processes)
    text = "strong, the same rows in a step; or weak, the same rows for each process"
    options.add(parser, "--mode", default_text=text, default="strong", type=options.one_of("strong", "weak"))
    parser.add_argument(
        "--rounds", type=at_least(1), default=ROUNDS, metavar="N", help=f"runs of each, in turn (default: {ROUNDS})"
    )
    options.add(parser, "--steps", default_text=str(SCALE_STEPS), default=SCALE_STEPS, type=at_least(LEAST_SCALE_STEPS))
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-scale")


def work(arguments: argparse.Namespace) -> None:
    """Runs what is left, prints what was found and writes it.

    Raises:
        ConfigError: if a number of processes cannot train the configuration; lists all problems.
        InputError: if arguments are invalid.
        RunError: if a run fails; a rerun of the command goes on with it.
    """
    scale = _scale(arguments)
    from toolkit.base.console import say
    from toolkit.checkpoint.output_folder import OutputLock
    from toolkit.lab import scale as page
    from toolkit.lab import scale as results
    from toolkit.lab import scale as runs

    scale.folder.mkdir(parents=True, exist_ok=True)
    rows = next(iter(scale.configs.values())).train.per_device_train_batch_size
    try:
        with OutputLock(scale.folder):
            measured = runs.measure(scale, rows)
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; rerun the same command to continue with the remaining runs", file=sys.stderr)
        sys.exit(EXIT_INTERRUPT)
    facts = {"config": arguments.config, "steps": arguments.steps, "command": shlex.join(arguments.command)}
    found = results.build(scale, measured, facts)
    page.write(found, scale.folder)
    say("")
    page.show(found)
    say(f"\nwritten to {scale.folder}/scale.html, .md, .json and .svg")


def _scale(arguments: argparse.Namespace) -> Scale:
    """Checks everything, and returns what to measure."""
    task_type, loaded = _recipe_config.load(arguments)
    from toolkit.base.console import quiet_libraries
    from toolkit.data.row_cache import code_fingerprint
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.scale import Scale, threads_of

    quiet_libraries()
    launch = Launch.of(arguments.launch, arguments.processes[-1])
    launch.check(1)
    overrides, configs = _checked(arguments, task_type, launch, loaded.config)
    return Scale(
        recipe=Path(arguments.recipe),
        config=Path(arguments.config),
        launch=launch,
        mode=arguments.mode,
        overrides=overrides,
        configs=configs,
        rounds=arguments.rounds,
        threads=None if _on_gpus(launch) else threads_of(arguments.processes[-1]),
        code=code_fingerprint(task_type(loaded.config)),
        folder=expanded(arguments.output_dir or f"{loaded.config.output_dir.rstrip('/')}-scale"),
    )


def _on_gpus(launch: Launch) -> bool:
    import torch

    return torch.cuda.is_available() and launch.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("1", "true")


def _checked(
    arguments: argparse.Namespace, task_type: type[Task], launch: Launch, configured: Config
) -> tuple[dict[int, list[str]], dict[int, Config]]:
    """Returns overrides and configuration of each number of processes.

    Raises:
        ConfigError: if any of them cannot be trained; lists all problems.
    """
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.config.keys import written
    from toolkit.lab.jobs.jobs import step_rows
    from toolkit.lab.jobs.strategies import Technique, window_settings
    from toolkit.lab.jobs.training import FEW_STEPS, unfrozen_at_once

    settings = FEW_STEPS | unfrozen_at_once(configured) | {"train.max_steps": arguments.steps}
    plain = [*arguments.overrides, *written(settings)]
    cfg = launch.load(task_type, arguments.config, plain)
    split = {f"parallel.{name}": str(getattr(cfg.parallel, name)) for name in ("tensor", "pipeline")}
    least = int(split["parallel.tensor"]) * int(split["parallel.pipeline"])
    rows = step_rows(cfg, least)  # those of a single group of processes
    overrides, configs, problems = dict[int, list[str]](), dict[int, Config](), list[str]()
    for number in arguments.processes:
        try:
            window = {}
            if arguments.mode == "strong" and number % least == 0:
                window = window_settings(cfg, Technique("", number, split, "", ""), rows)
            overrides[number] = [*plain, *(f"{key}={value}" for key, value in window.items())]
            configs[number] = launch.load(task_type, arguments.config, overrides[number])
            refuse_wrong_launch(configs[number], task_type, number)
        except ConfigError as error:
            problems += [f"{number} processes: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return overrides, configs

"""Two ways to start a recipe: its command line, and `toolkit.train` in Python.

The command line ends the process, with no traceback for a user's mistake; `train` returns or raises.

Exit codes: 0 done, 1 the run failed, 2 wrong input, 143 stopped by SIGTERM. Nothing heavy is imported before the
configuration is known to be right.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from toolkit.api.task import Task
from toolkit.base.exits import guarded
from toolkit.config.overrides import written
from toolkit.recipe import load_settings, load_task_type


def main(task_type: type[Task], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a recipe and ends the process.

    Args:
        task_type: the recipe's task.
        argv: arguments; those of the process where None.
    """
    recipe = Path(sys.argv[0])
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.help:
        from toolkit.config.describe import help_text

        print(help_text(task_type.Options, f"recipes/{recipe.name}"))
        sys.exit(0)
    if arguments.config is None:
        parser.error(
            f"--config FILE is needed, for instance recipes/configs/{recipe.stem}/smoke.yaml (--help lists all keys)"
        )

    def work() -> None:
        loaded = load_settings(task_type, arguments.config, arguments.overrides)
        from toolkit.run import run

        run(loaded.config, task_type(loaded.config), recipe, ends_process=True)

    guarded(work)


@dataclass(frozen=True)
class TrainResult:
    """What `train` returns; the same on every process.

    Args:
        output_dir: the run's folder, with the model, its predictions and the report.
        metrics: every number of the run, as in `run.json`: `eval_*` and `test_*` of the final model, `train_loss`,
            seconds, bytes.
        steps: optimizer steps of the run, those before a resume included.
        best: best value of the metric that names the best model, or None if nothing was evaluated.
        best_step: the step of that value.
    """

    output_dir: Path
    metrics: Mapping[str, float]
    steps: int
    best: float | None
    best_step: int | None


def train(
    recipe: str | Path | type[Task],
    config: str | Path | Mapping[str, Any],
    overrides: str | Sequence[str] | Mapping[str, Any] = (),
) -> TrainResult:
    """Trains, evaluates and reports, as the recipe's command line does: same checks, same files, same numbers.

    Nothing is printed: what the command line shows goes to `logging.getLogger("toolkit")`. Global random numbers,
    signal handlers and settings of the libraries are put back at the end. Under a launcher every process calls it.

    Args:
        recipe: the recipe's file, or its task.
        config: a YAML file, or its sections as a dictionary.
        overrides: settings to change: a `section.key=value`, a list of them, or values by dotted key.

    Returns:
        The run's folder and figures.

    Raises:
        ConfigError: with all settings that are wrong.
        DataError: for files or rows that cannot be used.
        CheckpointError: for an output folder or checkpoint that cannot be used.
        InputError: for a recipe or model that cannot be loaded.
        RunError: if the run fails.
        Interrupted: after SIGTERM, once a checkpoint is written; the same call then resumes with
            `checkpoint.resume=auto`.
    """
    task_type = recipe if isinstance(recipe, type) else load_task_type(recipe)
    if isinstance(overrides, str):
        overrides = [overrides]
    settings = written(overrides) if isinstance(overrides, Mapping) else overrides
    cfg = load_settings(task_type, config, settings).config

    from toolkit.distributed.process_state import random_state_kept
    from toolkit.run import run

    file = _file_of(recipe) if isinstance(recipe, type) else Path(recipe)
    with random_state_kept():
        result = run(cfg, task_type(cfg), file)
    numbers = {name: float(value) for name, value in result.figures.items() if value is not None}
    return TrainResult(Path(cfg.output_dir), numbers, result.steps, result.best, result.best_step)


def _file_of(task_type: type[Task]) -> Path:
    """The file of a task; a name without a file for one that was typed into an interpreter."""
    try:
        return Path(inspect.getfile(task_type))
    except (OSError, TypeError):
        return Path(f"{task_type.__module__}.{task_type.__qualname__}")

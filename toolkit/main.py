"""Starts a recipe: `main` from the command line, `train` from Python.

`main` ends the process and shows no traceback for a user's mistake; `train` returns or raises.

Exit codes: 0 success, 1 the run failed, 2 invalid input, 76 a rank stalled, 130 stopped by Ctrl-C, 143 stopped by
SIGTERM. Heavy libraries are imported only after the configuration has been validated.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, NoReturn

from toolkit.api.run import FitResult
from toolkit.api.task import Task
from toolkit.base.cli_errors import guarded, resumable
from toolkit.base.console import counted, say
from toolkit.base.package import is_shipped
from toolkit.base.processes import has_own_command, never_garbage
from toolkit.base.run_folder import RunFolder
from toolkit.checks.check import Told
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.recipe import config_file, load_settings, load_task_type, recipe_file


def main(task_type: type[Task], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a recipe and ends the process.

    Args:
        task_type: the recipe's task.
        argv: command-line arguments; None uses those of the process.

    Raises:
        SystemExit: always, with the exit code.
    """
    recipe = Path(sys.argv[0])
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.help:
        from toolkit.config.describe import help_text

        print(help_text(task_type.Options, recipe.stem if is_shipped(recipe) else str(recipe)))
        sys.exit(0)
    if arguments.config is None:
        parser.error(
            f"--config FILE is required, for example recipes/configs/{recipe.stem}/smoke.yaml (--help lists all keys)"
        )

    command = [sys.argv[0], *(sys.argv[1:] if argv is None else argv)]
    if has_own_command():
        command.insert(0, "python")
    guarded(lambda: run_recipe(task_type, recipe, config_file(recipe, arguments.config), arguments.overrides, command))


def run_recipe(
    task_type: type[Task],
    recipe: Path,
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    command: Sequence[str],
) -> None:
    """Runs a recipe as the last work of this process.

    Args:
        task_type: the recipe's task.
        recipe: the recipe's file.
        config: a YAML file, or its sections as a dictionary.
        overrides: `section.key=value` each.
        command: the command that starts this run, which a stopped run says again.

    Raises:
        ToolkitError: if the run cannot start, fails or is stopped.
    """
    with never_garbage():  # the settings, or everything that further checks import if one is wrong
        cfg = load_settings(task_type, config, overrides, starts_run=True, told=Told()).config
    with resumable(command):
        with never_garbage():
            import datasets  # noqa: F401

            import toolkit.run  # noqa: F401
        _run(cfg, task_type, recipe, ends_process=True)


def _run(cfg: Config, task_type: type[Task], recipe: Path, ends_process: bool = False) -> FitResult:
    """Trains, and again on all rows with `train.refit`; returns the result of the first training."""
    from toolkit.run import run

    result = run(cfg, task_type(cfg), recipe, ends_process=ends_process and not cfg.train.refit)
    if cfg.train.refit:
        again = refit_settings(cfg, result)
        say(f"train.refit: {counted(again.train.max_steps, 'step')} on all rows, in {again.output_dir}", True)
        run(again, task_type(again), recipe, ends_process=ends_process)
    return result


def refit_settings(cfg: Config, result: FitResult) -> Config:
    """Returns the settings of the training on all rows that follows a run with `train.refit`."""
    chosen = cfg.checkpoint.load_best_model_at_end or cfg.train.early_stopping_patience is not None
    steps = result.best_step if chosen and result.best_step else result.steps
    return replace(
        cfg,
        output_dir=str(RunFolder(Path(cfg.output_dir)).refit),
        data=replace(cfg.data, join_validation=True),
        train=replace(cfg.train, refit=False, max_steps=steps, early_stopping_patience=None, target_metric={}),
        eval=replace(cfg.eval, eval_steps=None, eval_on_start=False),
        checkpoint=replace(cfg.checkpoint, load_best_model_at_end=False),
    )


@dataclass(frozen=True)
class TrainResult:
    """What `train` returns; the same on every process.

    Args:
        output_dir: the run's folder, with the model, its predictions and the report; with `train.refit`, the model of
            all rows is in its folder `refit`.
        metrics: all numbers in the run's `run.json`: `eval_*` and `test_*` of the final model, `train_loss`, times in
            seconds, memory in bytes.
        steps: number of optimizer steps, including those before a resume.
        best: best value of the metric that selects the best model, or None if nothing was evaluated.
        best_step: step of the best value.
    """

    output_dir: Path
    metrics: Mapping[str, float]
    steps: int
    best: float | None
    best_step: int | None

    def _repr_html_(self) -> str:
        """Returns a small table for notebooks: the scores over all classes, and where the rest is."""
        from toolkit.base.console import format_value

        starts, ends = ("eval_", "test_", "ensemble_", "train_loss"), ("_low", "_high", "_baseline")
        chosen = [name for name in self.metrics if name.startswith(starts) and not name.endswith(ends)]
        rows = {name: format_value(self.metrics[name]) for name in chosen if "/" not in name}
        rows |= {"steps": f"{self.steps:,}", "best step": str(self.best_step), "folder": str(self.output_dir)}
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(rows[name])}</td></tr>" for name in rows)
        return f"<table>{cells}</table>"


def train(
    recipe: str | Path | type[Task],
    config: str | Path | Mapping[str, Any],
    overrides: str | Sequence[str] | Mapping[str, Any] = (),
) -> TrainResult:
    """Trains, evaluates and reports exactly as the recipe's command line does.

    Nothing is printed; messages go to `logging.getLogger("toolkit")`. Global random state, signal handlers and library
    settings are restored at the end. Under a launcher, every process must call this function.

    Args:
        recipe: the recipe's name or file, or its task.
        config: a YAML file, the name of a configuration of the recipe, or sections as a dictionary.
        overrides: settings to change: one `section.key=value`, a list of them, or a dictionary of values by dotted key.

    Returns:
        The run's folder and metrics.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
        DataError: if files or rows cannot be used.
        CheckpointError: if the output folder or a checkpoint cannot be used.
        InputError: if the recipe or model cannot be loaded.
        RunError: if the run fails.
        Interrupted: after SIGTERM or Ctrl-C, once a checkpoint has been written; the same call with
            `checkpoint.resume=auto` resumes the run.
    """
    file = _file_of(recipe) if isinstance(recipe, type) else recipe_file(recipe)
    task_type = recipe if isinstance(recipe, type) else load_task_type(file)
    if isinstance(config, str | Path):
        config = config_file(file, config)
    if isinstance(overrides, str):
        overrides = [overrides]
    settings = written(overrides) if isinstance(overrides, Mapping) else overrides
    cfg = load_settings(task_type, config, settings, starts_run=True).config

    from toolkit.distributed.launch import random_state_kept
    from toolkit.system.limits import give_back_freed

    with random_state_kept():
        result = _run(cfg, task_type, file)
    gc.collect()
    give_back_freed()  # the model is free only now
    numbers = {name: float(value) for name, value in result.figures.items() if isinstance(value, int | float)}
    return TrainResult(Path(cfg.output_dir), numbers, result.steps, result.best, result.best_step)


def _file_of(task_type: type[Task]) -> Path:
    """Returns the file of a task, or its qualified name if it was defined in an interpreter."""
    try:
        return Path(inspect.getfile(task_type))
    except (OSError, TypeError):
        return Path(f"{task_type.__module__}.{task_type.__qualname__}")

"""Score what needs no training: `toolkit baseline RECIPE --config FILE [section.key=value ...]`."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toolkit.base.errors import InputError, RunError
from toolkit.commands import _recipe_config, options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, and whether its model is scored."""
    _recipe_config.add_recipe(parser)
    parser.add_argument("--no-model", action="store_true", help="leave out the model, for instance because it is large")
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-baseline")


def work(arguments: argparse.Namespace) -> None:
    """Scores the baselines, prints and writes them.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if arguments are invalid, or there is nothing to score.
        RunError: if the model cannot be evaluated.
    """
    task_type, loaded = _recipe_config.load(arguments)
    from toolkit.api.run import best_metric
    from toolkit.api.task import SupportsBaselines
    from toolkit.base.console import quiet_libraries, say
    from toolkit.document.render import print_table
    from toolkit.lab import baseline
    from toolkit.lab.jobs.jobs import Launch

    quiet_libraries()
    cfg = loaded.config
    task = task_type(cfg)
    if arguments.no_model and not isinstance(task, SupportsBaselines):
        raise InputError("--no-model: this task has no baseline but its model; remove the option")
    output = options.output_folder(arguments.output_dir or f"{cfg.output_dir.rstrip('/')}-baseline")
    with TemporaryDirectory(prefix="baseline-") as folder:
        overrides = [*arguments.overrides, *_overrides(), f"output_dir={folder}/run"]
        Launch.of(None, 1).load(task_type, arguments.config, overrides)
        measured = _measured(arguments, overrides, Path(folder))
    if not measured["rows"]:
        raise InputError("data: there are no validation or test rows to score")
    found = {
        **measured,
        "metric": best_metric(cfg, task).name,
        "config": arguments.config,
        "command": shlex.join(arguments.command),
    }
    baseline.write(found, output)
    say("")
    print_table(baseline.table(found, baseline.main_names(found)[: baseline.MOST_IN_TERMINAL]))
    say(f"\nwritten to {output}/baseline.html, .md and .json")


def _overrides() -> list[str]:
    """Returns the overrides with which a run only evaluates, in one process."""
    from toolkit.config.keys import written
    from toolkit.config.train import ParallelConfig
    from toolkit.lab.jobs.training import STEPS_ONLY

    parallel = {f"parallel.{field.name}": field.default for field in fields(ParallelConfig)}
    kept = {key: value for key, value in STEPS_ONLY.items() if key != "eval.metric_for_best_model"}
    return written({**kept, **parallel, "train.max_steps": 1, "train.warmup_steps": 0, "model.unfreeze": {}})


def _measured(arguments: argparse.Namespace, overrides: list[str], folder: Path) -> dict[str, Any]:
    from toolkit.lab.jobs.jobs import Trial, run_trials

    job = {
        "recipe": str(Path(arguments.recipe).absolute()),
        "config": str(Path(arguments.config).absolute()),
        "overrides": overrides,
        "model": not arguments.no_model,
    }
    (outcome,) = run_trials([Trial("baseline", job, folder / "outcome.json")], folder / "baseline.log")
    if outcome.error is not None:
        raise RunError(outcome.error)
    measured: dict[str, Any] = outcome.result
    return measured

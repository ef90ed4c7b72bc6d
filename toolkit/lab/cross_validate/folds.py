"""Runs the trainings of a cross-validation, one for each fold; finished ones are not repeated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.base.errors import RunError
from toolkit.base.run_folder import RunFolder
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.lab.finished import job_name, measured_in, run_job, training_job
from toolkit.lab.jobs.training import QUIET
from toolkit.lab.launch import Launch

FOLDER = "folds"


@dataclass(frozen=True)
class Validation:
    """A cross-validation.

    Args:
        recipe: the recipe's file.
        config: the YAML file.
        overrides: the user's overrides.
        configs: the configuration of each fold.
        launch: how processes are started.
        code: digest of the toolkit's and the recipe's code.
        folder: output folder.
        keep_models: whether the model of each fold is kept.
    """

    recipe: Path
    config: Path
    overrides: Sequence[str]
    configs: Sequence[Config]
    launch: Launch
    code: str
    folder: Path
    keep_models: bool


@dataclass(frozen=True)
class Fold:
    """A finished fold.

    Args:
        number: its number, from 1.
        run: output folder of its training.
        measured: what `toolkit.lab.cross_validate.worker` measured, and the `seconds` of its process.
        kept: whether an earlier call of the command finished it.
    """

    number: int
    run: Path
    measured: dict[str, Any]
    kept: bool


def fold_settings(overrides: Sequence[str], folds: int, fold: int) -> list[str]:
    """Returns the overrides of the training whose validation rows are fold `fold` of `folds`."""
    own = {"data.validation_file": None, "data.validation_split": None, "data.folds": folds, "data.fold": fold}
    return [*overrides, *written({**QUIET, **own})]


def trained_folds(validation: Validation) -> Iterator[Fold]:
    """Yields each fold as soon as it is finished, in order.

    Raises:
        RunError: if the training of a fold fails.
    """
    total = len(validation.configs)
    for number, cfg in enumerate(validation.configs, start=1):
        # Checkpoints are needed only to load the best model at the end.
        saving = [] if cfg.checkpoint.load_best_model_at_end else ["checkpoint.save_steps=null"]
        overrides = [*fold_settings(validation.overrides, total, number), *saving]
        job = training_job(validation.recipe, validation.config, overrides, cfg, validation.launch, validation.code)
        folder = validation.folder / FOLDER / job_name(f"fold-{number}", job)
        run, measured = RunFolder(folder / "run"), measured_in(folder)
        if measured is not None and (run.model.is_dir() or not validation.keep_models):
            yield Fold(number, run.path, measured, kept=True)
            continue
        error = run_job("cross_validate", job, folder, validation.launch, {}, _clock())
        if error is not None:
            raise RunError(f"fold {number} of {total}: {error}\nrerun the same command to continue with the rest")
        if not validation.keep_models:
            for place in (run.model, run.base, run.processor, run.snapshots):
                shutil.rmtree(place, ignore_errors=True)
        yield Fold(number, run.path, measured_in(folder) or {}, kept=False)


def _clock() -> Callable[[], dict[str, float]]:
    """Returns a function that returns the `seconds` since this call."""
    began = time.monotonic()
    return lambda: {"seconds": time.monotonic() - began}

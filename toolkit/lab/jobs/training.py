"""Trains in this process and keeps the run open for measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.config.sections import Config, TrainConfig

if TYPE_CHECKING:
    from toolkit.api.run import FitResult, Run
    from toolkit.api.training import Callback

QUIET: dict[str, Any] = {
    "checkpoint.resume": "none",
    "checkpoint.push_to_hub": False,
    **dict.fromkeys(f"checkpoint.hub_{name}" for name in ("model_id", "private_repo", "revision")),
    "tracking.report_to": [],
    "tracking.run_name": None,
    "tracking.histogram_steps": None,
    "tracking.graph": False,
    "tracking.project": "finetune-toolkit",
}
"""Settings of a run that starts from the beginning and reports nowhere else."""
STEPS_ONLY: dict[str, Any] = {
    **QUIET,
    **{f"train.{name}": getattr(TrainConfig(), name) for name in (
        "early_stopping_patience", "early_stopping_threshold", "max_time", "snapshot_ensemble", "target_metric")},
    "trainer.args": {},
    "trainer.callbacks": [],
    "eval.eval_steps": None,
    "eval.eval_on_start": False,
    "eval.metric_for_best_model": None,
    "checkpoint.save_steps": None,
    "checkpoint.load_best_model_at_end": False,
}  # fmt: skip
"""Settings of a run that trains its steps on its rows, and neither evaluates, saves nor reports."""
FEW_STEPS: dict[str, Any] = STEPS_ONLY | {
    "train.auto_batch_size": False, "train.lr_scheduler_type": "constant", "train.lr_scheduler_kwargs": {},
    "train.warmup_steps": 0, "data.validation_file": None, "data.validation_split": 0, "data.folds": None,
    "data.fold": 1, "data.test_file": None, "data.test_split": 0.0, "data.max_eval_samples": None,
}  # fmt: skip
"""Settings of a run that is only measured for a few steps (`train.max_steps`) and reads no rows but those."""


def unfrozen_at_once(cfg: Config) -> dict[str, Any]:
    """Returns the setting with which a few steps train what `model.unfreeze` names, all of it after the first step."""
    names = dict.fromkeys(chain.from_iterable(cfg.model.unfreeze.values()))
    return {"model.unfreeze": {"step_1": [*names]}} if names else {}


@contextmanager
def trained(
    job: Mapping[str, Any], *observers: Callback, changed: Callable[[Run], Run] = lambda run: run
) -> Iterator[tuple[Run, FitResult]]:
    """Trains, and yields the run and its result, open while the context is active.

    The job has `recipe`, `config`, `overrides` and optionally `keep_model`: whether the run also writes its model and
    its report. `changed` returns the run to train in place of the prepared one.
    """
    from toolkit.engine import fit
    from toolkit.recipe import load_settings, load_task_type
    from toolkit.run import fit_and_report, trained_run

    task_type = load_task_type(job["recipe"])
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    work = partial(fit_and_report, ends_process=False) if job.get("keep_model") else fit
    work = partial(work, observers=observers)
    with trained_run(cfg, task_type(cfg), Path(job["recipe"]), work, changed) as found:
        yield found

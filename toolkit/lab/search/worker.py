"""Trains one trial of a search in a separate process, and reports how it ended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from toolkit.api.run import FitResult, Run
from toolkit.api.state import Milestones
from toolkit.api.training import Callback
from toolkit.base.errors import ConfigError, Interrupted, RunError
from toolkit.base.run_folder import RunFolder
from toolkit.data.batching.batches import training_order
from toolkit.distributed.collectives import on_main
from toolkit.engine.evaluation import NonFiniteLoss
from toolkit.engine.non_finite import NonFiniteGradient, NonFiniteParameters
from toolkit.lab.jobs.training import trained
from toolkit.lab.search.space import METHODS
from toolkit.lab.search.study import ENVIRON, storage_of
from toolkit.report.results import summary_figures
from toolkit.report.subsets import resampled
from toolkit.tracking.jsonl import read_metrics

RISE = 1.2
"""Training has diverged if its loss ends above this factor of the loss that it began with."""
PART = 10
"""The first and the last loss are the means of one of this many parts of the logged losses."""


class _Pruned(Exception):  # noqa: N818 - not an error
    """The pruner ends the trial; raised on every rank."""


class _Reached(Exception):  # noqa: N818 - not an error
    """The checkpoint is already that of the end of the segment; raised on every rank."""


class Watcher(Callback):
    """Reports the evaluations of a trial to its study, and ends it for the pruner, the deadline or the segment."""

    run: Run
    """The run, set before its first step."""
    milestones: Milestones

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = job
        self.values: list[list[float]] = []
        """Step and value of each evaluation of this process."""
        self.segment_is_over = False
        self._end = math.inf

    def begin(self, run: Run) -> Run:
        """Returns a run without its test rows, which no trial may see.

        Raises ConfigError if there are no validation rows; _Reached if the run turns out to be at the end of its
        segment.
        """
        evals = {name: rows for name, rows in run.data.evals.items() if name == "validation"}
        if not evals:
            raise ConfigError(["data.validation_file: a search compares trials on validation rows, and there are none"])
        self.run = replace(run, data=replace(run.data, evals=evals))
        # After a return to a checkpoint, repeated evaluations count once.
        self.values = [each for each in self.values if run.resume is not None and each[0] <= run.resume.step]
        order = training_order(run.data.train, run.cfg, run.mesh)
        self.milestones = Milestones.of(run.cfg, order.windows_per_epoch)
        if segment := self._job.get("segment"):
            self._end = segment * (self.milestones.eval_every or math.inf)
        if run.resume is not None and run.resume.step == self._end < self.milestones.total_steps:
            self._recall(run.resume.step)
        return self.run

    def _recall(self, step: int) -> None:
        """Ends the segment with the value that the run has logged at this step, if it has."""
        lines = read_metrics(RunFolder(self.run.output_dir).metrics)
        logged = [line[self._job["metric"]] for line in lines if line["step"] == step and self._job["metric"] in line]
        if logged:
            self.values.append([step, logged[-1]])
            raise _Reached

    def after_step(self, record: Mapping[str, float]) -> None:
        """Stops the run with a checkpoint after the deadline."""
        deadline = self._job.get("deadline")
        if deadline is not None and time.time() > deadline and self.run.accelerator.is_main_process:
            self.training.stop("the time of the search is over")

    def on_evaluated(self, metrics: Mapping[str, float]) -> None:
        """Reports an evaluation. Raises _Pruned on every rank, if the trial is to end."""
        step, value = self.training.state.step, metrics[self._job["metric"]]
        self.values.append([step, value])
        if self._end <= step < self.milestones.total_steps:
            self.segment_is_over = True
            self.training.stop("the segment of the trial is over")
        elif self._job.get("study") and on_main(self.run.accelerator, self.is_hopeless, step, value):
            raise _Pruned

    def is_hopeless(self, step: int, value: float) -> bool:
        """Reports to the study, and returns whether its pruner ends the trial."""
        import optuna

        job, every, total = self._job["study"], self.milestones.eval_every, self.milestones.total_steps
        number, last = (math.ceil(place / every) if every else 1 for place in (step, total))
        storage = storage_of(Path(job["folder"]), os.environ.get(ENVIRON))
        study = optuna.load_study(
            study_name=job["name"], storage=storage, sampler=optuna.samplers.RandomSampler(),
            pruner=METHODS[job["method"]].pruner(last),
        )  # fmt: skip
        trial = optuna.trial.Trial(study, job["trial_id"])
        if number in study.trials[trial.number].intermediate_values:  # reported before the trial was stopped
            return False
        trial.report(value, number)
        return number < last and trial.should_prune()


def train(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains or resumes a trial.

    Args:
        job: as for `toolkit.lab.jobs.training.trained`, with the name of the deciding `metric`; and optionally
            `study` (`folder`, `name`, `method` and `trial_id`), `deadline` (as `time.time`), and `segment`: the number
            of the evaluation after which to stop.

    Returns:
        `state`: `finished`, `pruned`, `diverged`, `infeasible`, `stopped` (resumable) or `segment`; `reason`;
        `value`; `evaluations`: step and value of each one of this process; and further JSON values.
    """
    watcher = Watcher(job)
    try:
        with trained(job, watcher, changed=watcher.begin) as (run, result):
            return {**on_main(run.accelerator, _finished, run, result, job["metric"]), "evaluations": watcher.values}
    except _Reached:
        found = {"state": "segment"}
    except _Pruned:
        found = {"state": "pruned", "reason": f"pruned at step {watcher.values[-1][0]}"}
    except Interrupted:
        found = {"state": "segment" if watcher.segment_is_over else "stopped"}
    except ConfigError as error:
        found = {"state": "infeasible", "reason": "; ".join(error.problems)}
    except RunError as error:
        cause = error.__cause__ or error  # the evaluator adds the step
        if not isinstance(cause, NonFiniteGradient | NonFiniteParameters | NonFiniteLoss):
            raise
        found = {"state": "diverged", "reason": str(error).split("\n")[0].split(";")[0]}
    value = {"value": watcher.values[-1][1], "steps": watcher.values[-1][0]} if watcher.values else {}
    diverged = {"value": None} if found["state"] == "diverged" else {}  # in place of the last evaluation
    return {**found, **value, "evaluations": watcher.values} | diverged


def _finished(run: Run, result: FitResult, metric: str) -> dict[str, Any]:
    """Returns the result of a trial that finished."""
    figures = {name: value for name, value in summary_figures(run, result).items() if isinstance(value, int | float)}
    history = read_metrics(RunFolder(run.output_dir).metrics)
    rise = risen([line["loss"] for line in history if line.get("loss") is not None])
    value = figures.get(metric)
    found = {"state": "finished", "value": value, "steps": result.steps, "metrics": figures,
             "rows": len(run.data.evals["validation"].rows), "train_seconds": result.train_seconds}  # fmt: skip
    if value is None or not math.isfinite(value):
        return found | {"state": "failed", "value": None, "reason": f"{metric} is not a number"}
    return found | ({"state": "diverged", "reason": rise} if rise else {})


def risen(losses: Sequence[float]) -> str | None:
    """Returns how the training loss rose, if it ended above its start."""
    if len(losses) < 2:
        return None
    count = max(1, len(losses) // PART)
    first, last = fmean(losses[:count]), fmean(losses[-count:])
    return f"the training loss rose from {first:.4g} to {last:.4g}" if last > RISE * first > 0 else None


def score(job: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluates a finished trial, also on the test rows if there are any; writes its model if `keep_model`.

    The job is as for `toolkit.lab.jobs.training.trained`, with `metric` and `draws`: the number of bootstrap sets.

    Returns:
        For each set of rows: `value`, and `draws`, the values of the metric for sets of rows drawn from it; `rows`.
    """
    with trained(job) as (run, result):
        return on_main(run.accelerator, _scores, run, result, job["metric"].removeprefix("eval_"), job["draws"])


def _scores(run: Run, result: FitResult, name: str, draws: int) -> dict[str, Any]:
    found = {}
    for rows, evaluation in result.evaluations.items():
        data = run.data.evals[rows]
        drawn = resampled(run.task, evaluation.predictions, data, draws) if name != "loss" else []
        found[rows] = {"value": evaluation.metrics.get(name), "rows": len(data.rows),
                       "draws": [metrics[name] for metrics in drawn if name in metrics]}  # fmt: skip
    return found

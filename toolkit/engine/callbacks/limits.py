"""Callbacks that end training: a target metric, early stopping, a maximum time.

The measure is that of DAWNBench (Coleman et al. 2017).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from toolkit.api.run import target_metric
from toolkit.api.training import Callback, Training
from toolkit.base.console import format_duration, format_value, say
from toolkit.distributed.collectives import all_sum
from toolkit.engine.callbacks.costs import known, total_of

NEEDED, ENERGY = ("target_step", "target_seconds"), "target_energy_wh"


class Target(Callback):
    """Notes step, time and energy of the first evaluation that reaches the target."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        target = target_metric(training.run.cfg, training.run.task)
        assert target is not None
        self.score, self.goal = target
        self.reached: dict[str, float] = {}
        self.ended = False

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Ends training if the metric has reached the target."""
        value, training = metrics[self.score.name], self.training
        if self.reached or not (value >= self.goal if self.score.greater_is_better else value <= self.goal):
            return
        used, step = total_of(training), training.state.step
        self.reached = dict(zip(NEEDED, (float(step), used.seconds), strict=True))
        words = f"{self.score.name} {format_value(value)} reaches the target of {format_value(self.goal)} after "
        words += f"step {step} and {format_duration(used.seconds)}"
        if used.watt_hours is not None:
            self.reached[ENERGY] = used.watt_hours
            words += f", with {format_value(used.watt_hours)} Wh"
        say(words)
        if not training.over:
            self.ended = True
            training.end()

    def final_metrics(self) -> dict[str, float]:
        """Returns step, time and energy of the target; nothing if it was not reached."""
        return dict(self.reached)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns what reaching the target took, and whether that ended the run."""
        return {}, {"goal": [self.score.name, self.goal], "reached": dict(self.reached), "ended": self.ended}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores whether the target was reached; a resumed run with a different target continues."""
        if values["goal"] == [self.score.name, self.goal]:
            reached, self.ended = dict(values["reached"]), bool(values["ended"])
            names = [*NEEDED, *({ENERGY} & reached.keys())] if reached else []
            self.reached = {name: known(reached[name]) for name in names}
        elif values["ended"]:
            self.training.state.ended = False


class EarlyStopping(Callback):
    """Counts evaluations that did not improve on the best one by more than the threshold."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.reference: float | None = None
        self.waited = 0

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Counts evaluations without improvement; ends training when the patience is exhausted."""
        run, train = self.training.run, self.training.run.cfg.train
        value = metrics[run.best.name]
        if not math.isnan(value) and (
            self.reference is None or self._gain(value, self.reference) > train.early_stopping_threshold
        ):
            self.reference, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= (train.early_stopping_patience or 0) and not self.training.over:
            since = f"for {self.waited} evaluations"
            what = "was not a number" if self.reference is None else f"has not improved on {self.reference:.4g}"
            say(f"stopping after step {self.training.state.step}: {run.best.name} {what} {since}")
            self.training.end()

    def _gain(self, value: float, reference: float) -> float:
        return value - reference if self.training.run.best.greater_is_better else reference - value

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the best value and the number of evaluations since."""
        return {}, {"reference": self.reference, "waited": self.waited}

    def forget_evaluations(self) -> None:
        """Waits anew for an improvement."""
        self.reference, self.waited = None, 0

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the best value and the count."""
        self.reference, self.waited = values["reference"], values["waited"]


UNITS = (86400, 3600, 60, 1)
"""Seconds of each part of `train.max_time`."""


class MaxTime(Callback):
    """Counts seconds of training, including those before a resume; the main process's clock decides for all."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        parts = (training.run.cfg.train.max_time or "").split(":")
        self.limit = sum(int(part) * unit for part, unit in zip(parts, UNITS, strict=True))
        self.before, self.start = 0.0, time.monotonic()
        self.ended = False

    @property
    def used(self) -> float:
        """Training time so far, in seconds."""
        return self.before + time.monotonic() - self.start

    def after_update(self) -> None:
        """Ends training when the time limit is reached."""
        accelerator = self.training.run.accelerator
        (up,) = all_sum(accelerator, float(accelerator.is_main_process and self.used >= self.limit))
        if up and not self.training.over:
            say(f"stopping after step {self.training.state.step}: train.max_time is reached")
            self.ended = True
            self.training.end()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the training time, and whether the limit has ended the run."""
        return {}, {"used": self.used, "ended": self.ended}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the training time; a run that reached its limit continues if the limit was raised."""
        self.before, self.start = values["used"], time.monotonic()
        self.ended = values["ended"] and values["used"] >= self.limit
        if values["ended"] and not self.ended:
            self.training.state.ended = False

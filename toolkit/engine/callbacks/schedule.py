"""Callbacks that change the schedule: `reduce_lr_on_plateau`, and a momentum that follows the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from toolkit.api.training import Callback, Training
from toolkit.optim import schedules
from toolkit.optim.schedules import in_steps, momentum_of, set_momentum

_KEPT = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")


class Plateau(Callback):
    """Passes each evaluation's metric to torch's `ReduceLROnPlateau` and scales all learning rates by its factor."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        train = training.run.cfg.train
        best = training.run.best
        self.name = best.name
        self.peak = train.learning_rate
        stand_in = torch.optim.SGD([torch.zeros(1)], lr=self.peak)
        self.group = stand_in.param_groups[0]
        self.rule = ReduceLROnPlateau(stand_in, "max" if best.greater_is_better else "min", **train.lr_scheduler_kwargs)

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Passes the metric to torch's schedule; the next step uses the new rate."""
        self.rule.step(metrics[self.name])
        self._apply()

    def _apply(self) -> None:
        schedule = self.training.schedule
        for factor in schedule.lr_lambdas:
            assert isinstance(factor, schedules.Factor)
            factor.scale = self.group["lr"] / self.peak if self.peak else 1.0
        schedules.seek(schedule, schedule.last_epoch)

    def forget_evaluations(self) -> None:
        """Compares with the values from now on; the rate stays."""
        self.rule.best, self.rule.num_bad_epochs = self.rule.mode_worse, 0

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the state of torch's schedule: rate, best value and evaluations since."""
        return {}, {"lr": self.group["lr"], **{name: getattr(self.rule, name) for name in _KEPT}}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the state of torch's schedule and the learning rate."""
        self.group["lr"] = values["lr"]
        for name in _KEPT:
            setattr(self.rule, name, values[name])
        self._apply()


class CycledMomentum(Callback):
    """Sets the optimizer's momentum before each update. The schedule's step alone determines it."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        milestones = training.milestones
        train = in_steps(training.run.cfg.train, milestones.steps_per_epoch)
        self.momentum_at = momentum_of(train, milestones.total_steps)
        self.current = self.momentum_at(0)

    def before_update(self) -> None:
        """Sets the momentum that belongs to the rate of this update."""
        self.current = self.momentum_at(self.training.schedule.last_epoch)
        set_momentum(self.training.optimizer, self.current)

    def log_metrics(self) -> dict[str, float]:
        """Returns the momentum of the last update."""
        return {"momentum": self.current}

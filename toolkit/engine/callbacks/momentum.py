"""Momentum that is cycled with the learning rate (Smith 2018, arXiv 1803.09820)."""

from __future__ import annotations

from toolkit.api.training import Callback, TrainingContext
from toolkit.optim.schedules import in_steps, momentum_of, set_momentum


class CycledMomentum(Callback):
    """Sets the optimizer's momentum before each update. The schedule's step alone determines it."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        milestones = context.milestones
        train = in_steps(context.run.cfg.train, milestones.steps_per_epoch)
        self.momentum_at = momentum_of(train, milestones.total_steps)
        self.current = self.momentum_at(0)

    def before_update(self) -> None:
        """Sets the momentum that belongs to the rate of this update."""
        self.current = self.momentum_at(self.context.schedule.last_epoch)
        set_momentum(self.context.optimizer, self.current)

    def log_metrics(self) -> dict[str, float]:
        """Returns the momentum of the last update."""
        return {"momentum": self.current}

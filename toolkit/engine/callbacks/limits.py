"""Ends training when a metric has reached `train.target_metric`, and says what that took.

The measure is that of DAWNBench (Coleman et al. 2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.api.run import target_metric
from toolkit.api.training import Callback, TrainingContext
from toolkit.base.console import format_duration, format_value, say
from toolkit.engine.callbacks.costs import known, total_of

NEEDED, ENERGY = ("target_step", "target_seconds"), "target_energy_wh"


class Target(Callback):
    """Notes step, time and energy of the first evaluation that reaches the target."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        target = target_metric(context.run.cfg, context.run.task)
        assert target is not None
        self.score, self.goal = target
        self.reached: dict[str, float] = {}
        self.ended = False

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Ends training if the metric has reached the target."""
        value, context = metrics[self.score.name], self.context
        if self.reached or not (value >= self.goal if self.score.greater_is_better else value <= self.goal):
            return
        used, step = total_of(context), context.state.step
        self.reached = dict(zip(NEEDED, (float(step), used.seconds), strict=True))
        words = f"{self.score.name} {format_value(value)} reaches the target of {format_value(self.goal)} after "
        words += f"step {step} and {format_duration(used.seconds)}"
        if used.watt_hours is not None:
            self.reached[ENERGY] = used.watt_hours
            words += f", with {format_value(used.watt_hours)} Wh"
        say(words)
        if not context.over:
            self.ended = True
            context.end()

    def final_metrics(self) -> dict[str, float]:
        """Returns step, time and energy of the target; nothing if it was not reached."""
        return dict(self.reached)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns what reaching the target took, and whether that ended the run."""
        return {}, {"goal": [self.score.name, self.goal], "reached": dict(self.reached), "ended": self.ended}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores that; a run that reached its target goes on if it is resumed with another one."""
        if values["goal"] == [self.score.name, self.goal]:
            reached, self.ended = dict(values["reached"]), bool(values["ended"])
            names = [*NEEDED, *({ENERGY} & reached.keys())] if reached else []
            self.reached = {name: known(reached[name]) for name in names}
        elif values["ended"]:
            self.context.state.ended = False

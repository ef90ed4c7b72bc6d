"""Early stopping: ends training when the metric has stopped improving."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from toolkit.api.training import Callback, TrainingContext
from toolkit.base.console import say


class EarlyStopping(Callback):
    """Counts evaluations that did not improve on the best one by more than the threshold."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.reference: float | None = None
        self.waited = 0

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Counts evaluations without improvement; ends training when the patience is exhausted."""
        run, train = self.context.run, self.context.run.cfg.train
        value = metrics[run.best.name]
        if not math.isnan(value) and (
            self.reference is None or self._gain(value, self.reference) > train.early_stopping_threshold
        ):
            self.reference, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= (train.early_stopping_patience or 0) and not self.context.over:
            since = f"for {self.waited} evaluations"
            what = "was not a number" if self.reference is None else f"has not improved on {self.reference:.4g}"
            say(f"stopping after step {self.context.state.step}: {run.best.name} {what} {since}")
            self.context.end()

    def _gain(self, value: float, reference: float) -> float:
        return value - reference if self.context.run.best.greater_is_better else reference - value

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the best value and the number of evaluations since."""
        return {}, {"reference": self.reference, "waited": self.waited}

    def forget_evaluations(self) -> None:
        """Waits anew for an improvement."""
        self.reference, self.waited = None, 0

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the best value and the count."""
        self.reference, self.waited = values["reference"], values["waited"]

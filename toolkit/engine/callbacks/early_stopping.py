"""Early stopping: training ends when evaluations have not become better for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.api.run import best_metric
from toolkit.base.console import say
from toolkit.engine.callbacks.extensions import Extension


class EarlyStopping(Extension):
    """Counts evaluations that were not better than the best before by more than the threshold."""

    reference: float | None = None
    waited = 0

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Counts, and ends training when the patience is used up."""
        cfg = self.session.run.cfg
        name, greater = best_metric(cfg, self.session.run.task)
        value, threshold = metrics[name], cfg.train.early_stopping_threshold
        gain = 0.0 if self.reference is None else (value - self.reference if greater else self.reference - value)
        if self.reference is None or gain > threshold:
            self.reference, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= (cfg.train.early_stopping_patience or 0) and not self.session.over:
            since = f"has not become better than {self.reference:.4g} in {self.waited} evaluations"
            say(f"stopping after step {self.session.state.step}: {name} {since}")
            self.session.end()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the value to beat and the evaluations since."""
        return {}, {"reference": self.reference, "waited": self.waited}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Goes on counting."""
        self.reference, self.waited = values["reference"], values["waited"]

"""Evaluation during and after training: each set at most once per step, and which step was the best."""

from __future__ import annotations

import math
from collections.abc import Callable

from toolkit.api.callback import TrainingContext
from toolkit.api.run import Evaluation
from toolkit.engine.evaluation import evaluate


class Evaluator:
    """Evaluates a training's sets with the parameters as they are.

    Args:
        context: the training.
        pause: called on every rank before parameters are read.
    """

    def __init__(self, context: TrainingContext, pause: Callable[[], None]) -> None:
        self._context, self._pause = context, pause
        self._validation: tuple[int, Evaluation] | None = None

    def evaluate(self, name: str) -> Evaluation | None:
        """Evaluates a set; the result of the validation rows is remembered for its step.

        Args:
            name: `validation` or `test`.

        Returns:
            Metrics on every rank and predictions on the main process, or None if the run has no such set.
        """
        context, run = self._context, self._context.run
        if name not in run.data.evals:
            return None
        if name == "validation" and self._validation is not None and self._validation[0] == context.state.step:
            return self._validation[1]
        self._pause()
        with context.as_result(), run.strategy.full_model() as model:
            result = evaluate(run, model, run.data.evals[name], name, context.beat)
        if name == "validation":
            self._validation = (context.state.step, result)
        return result

    def forget(self) -> None:
        """Says that parameters have changed since the last evaluation, though the step has not."""
        self._validation = None

    def note_best(self, metrics: dict[str, float]) -> bool:
        """Remembers the step if its validation metrics are the best so far; says whether they are.

        Args:
            metrics: with the prefix `eval_`.
        """
        state, best = self._context.state, self._context.run.best
        value = metrics[best.name]
        if math.isnan(value):
            return False
        if state.best_metric is not None and (
            value <= state.best_metric if best.greater_is_better else value >= state.best_metric
        ):
            return False
        state.best_metric, state.best_step = value, state.step
        return True

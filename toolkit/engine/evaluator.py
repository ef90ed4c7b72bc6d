"""Evaluates during and after training, each set at most once per step, and tracks the best step."""

from __future__ import annotations

import math
from collections.abc import Callable

from toolkit.api.run import Evaluation
from toolkit.api.training import TrainingContext
from toolkit.base.errors import RunError
from toolkit.engine.evaluation import evaluate
from toolkit.engine.interrupting import Abandoned
from toolkit.system.phases import in_phase


class Evaluator:
    """Evaluates a training's evaluation sets with the current parameters.

    Args:
        context: the training.
        pause: called on every rank before parameters are read.
    """

    def __init__(self, context: TrainingContext, pause: Callable[[], None]) -> None:
        self._context, self._pause = context, pause
        self._validation: tuple[int, Evaluation] | None = None

    @in_phase("evaluate")
    def evaluate(self, name: str) -> Evaluation | None:
        """Evaluates a set. The result of the validation rows is cached for its step.

        Args:
            name: `validation` or `test`.

        Returns:
            Metrics on every rank and predictions on the main process, or None if the run has no such set.

        Raises:
            RunError: on every rank, if the loss is not finite.
            Abandoned: on every rank, if any rank received a stop signal.
        """
        context, run = self._context, self._context.run
        if name not in run.data.evals:
            return None
        if name == "validation" and self._validation is not None and self._validation[0] == context.state.step:
            return self._validation[1]
        self._pause()
        result = None
        with context.as_result(), run.strategy.full_model() as model:
            try:
                result = evaluate(run, model, run.data.evals[name], name, context.beat, context.is_stopping)
            except Abandoned:  # parameters must be those of training again when it is raised
                pass
            except RunError as error:
                told = RunError(f"step {context.state.step}: {error}. Checkpoints of earlier steps are kept")
                told.shared = error.shared
                raise told from error
        if result is None:
            raise Abandoned
        if name == "validation":
            self._validation = (context.state.step, result)
        return result

    def forget(self) -> None:
        """Discards the cached result, because parameters have changed without a new step."""
        self._validation = None

    def note_best(self, metrics: dict[str, float]) -> bool:
        """Records the step as the best one if its validation metrics are the best so far.

        Args:
            metrics: metrics with the prefix `eval_`.

        Returns:
            Whether they are the best so far.
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

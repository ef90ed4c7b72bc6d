"""The result of a training: the evaluations of the final model, and what the training took."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.api.run import FitResult, overall_scores
from toolkit.api.training import TrainingContext
from toolkit.engine.callbacks.costs import total_of
from toolkit.engine.evaluator import Evaluator
from toolkit.engine.meter import ProgressMeter
from toolkit.optim.state import state_bytes
from toolkit.tracking.tracker import Tracker


def outcome(
    context: TrainingContext,
    evaluator: Evaluator,
    meter: ProgressMeter,
    tracker: Tracker,
    copy_bytes: int,
    left_out: Mapping[str, float],
) -> FitResult:
    """Evaluates the final model and returns the result. Every rank must call it.

    Args:
        context: the training, which is over.
        evaluator: evaluates all evaluation sets.
        meter: its sums of losses and times.
        tracker: receives the metrics of the test rows, and the figures of the strategy and the callbacks.
        copy_bytes: memory of the copy of a checkpoint.
        left_out: figures of the updates that were left out.
    """
    run, state = context.run, context.state
    place = {"step": state.step, "epoch": context.epoch}
    evaluations = {name: found for name in run.data.evals if (found := evaluator.evaluate(name)) is not None}
    if test := evaluations.get("test"):
        tracker.log(place | {f"test_{name}": value for name, value in test.metrics.items()})
    further = {**run.strategy.exchanged(), **left_out}
    further |= {f"start_{score.name}": value for score in overall_scores(run.task)
                if (value := state.start_scores.get(score.name)) is not None}  # fmt: skip
    for callback in context.callbacks.values():
        further |= callback.final_metrics()
    if further:
        tracker.log(place | further)
    run.system.end()
    return FitResult(
        steps=state.step,
        train_loss=meter.train_loss,
        evaluations=evaluations,
        best=state.best_metric,
        best_step=state.best_step,
        train_seconds=meter.seconds,
        items_per_second=meter.items_per_second,
        memory=run.memory.use(context.bare_model, state_bytes(context.optimizer), copy_bytes),
        further=further,
        phases=meter.phases.seconds(),
        costs=total_of(context).figures(run.cfg.tracking),
    )

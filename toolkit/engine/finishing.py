"""The end of a training: the last step is saved and evaluated, and the best parameters become the result."""

from __future__ import annotations

from toolkit.api.callback import Callback
from toolkit.api.run import FitResult
from toolkit.distributed.guard import refuse_non_finite
from toolkit.engine.session import Session
from toolkit.optim.state import state_bytes


def finish(session: Session) -> FitResult:
    """Saves and evaluates the last step, and restores the best parameters if configured."""
    run, state, checkpoint = session.run, session.state, session.run.cfg.checkpoint
    run.memory.pause()
    if state.num_items and session.meter.last_step:  # the run ended before its last milestone
        session.log()
    if session.context.milestones.save_every is not None:
        session.save()
    session.evaluate()
    session.stops.stop_now()
    best_is_earlier = state.best_step not in (None, state.step)
    replaced = any(type(callback).finish is not Callback.finish for callback in session.callbacks)
    if checkpoint.load_best_model_at_end and best_is_earlier and session.checkpointer.load_best():
        session.evaluator.forget()
        replaced = True
    session.pause()
    session.stops.can_save = session.checkpointer.is_saved or not replaced
    for callback in session.callbacks:
        callback.finish()
    refuse_non_finite(run.accelerator, session.strategy.own_parameters(), state.step)
    with session.abandoned_if_stopped():
        return _result(session)


def _result(session: Session) -> FitResult:
    run, state = session.run, session.state
    place = {"step": state.step, "epoch": session.context.epoch}
    evaluations = {name: found for name in run.data.evals if (found := session.evaluator.evaluate(name)) is not None}
    if test := evaluations.get("test"):
        session.tracker.log(place | {f"test_{name}": value for name, value in test.metrics.items()})
    further = session.strategy.exchanged() | session.updates.metrics()
    for callback in session.callbacks:
        further |= callback.final_metrics()
    if further:
        session.tracker.log(place | further)
    return FitResult(
        steps=state.step,
        train_loss=session.meter.train_loss,
        evaluations=evaluations,
        best=state.best_metric,
        best_step=state.best_step,
        train_seconds=session.meter.seconds,
        items_per_second=session.meter.items_per_second,
        memory=run.memory.use(session.context.bare_model, state_bytes(session.context.optimizer)),
        further=further,
    )

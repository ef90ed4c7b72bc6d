"""The end of a training: the last step is saved and evaluated, and the best parameters become the result."""

from __future__ import annotations

from toolkit.api.run import FitResult
from toolkit.api.training import Callback
from toolkit.distributed.non_finite import refuse_non_finite
from toolkit.engine.outcome import outcome
from toolkit.engine.training import Session


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
    session.checkpointer.join()
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
        copy_bytes, left_out = session.checkpointer.copy_bytes, session.updates.metrics()
        return outcome(session.context, session.evaluator, session.meter, session.tracker, copy_bytes, left_out)

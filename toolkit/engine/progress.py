"""Restores how far a training had come: counters, schedule and loss scale of a checkpoint."""

from __future__ import annotations

from toolkit.api.training import TrainingContext
from toolkit.base.console import say
from toolkit.checkpoint.state import SavedState, changed_evaluation
from toolkit.optim import schedules


def restore_progress(content: SavedState, context: TrainingContext) -> bool:
    """Restores counters, schedule and loss scale.

    Args:
        content: the state in the checkpoint.
        context: the training.

    Returns:
        Whether its metrics can be compared with those to come.
    """
    state, run = context.state, context.run
    state.restore(content.train)
    schedules.seek(context.schedule, state.step - state.skipped_steps)
    if run.accelerator.scaler is not None and content.scaler is not None:
        run.accelerator.scaler.load_state_dict(content.scaler)
    limits = {name for name, values in content.callbacks.items() if values.get("ended")}
    if limits and not limits & context.callbacks.keys():
        state.ended = False  # the limit that ended the run is gone
    changes = changed_evaluation(content.identity, run.identity)
    if changes:
        say(f"metrics cannot be compared with those before ({changes}): tracking of the best one restarts")
        state.best_metric, state.best_step = None, None
    return not changes

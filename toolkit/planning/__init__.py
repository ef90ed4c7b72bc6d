"""Before a run: what it will take of memory, how that could be shared out, and what would make it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.engine.run import Run
    from toolkit.planning.footprint import Footprint


def predicted(run: Run) -> Footprint:
    """Predicts the memory of a run's training steps from its model's configuration and its longest rows.

    It may be called before or after training, on any process. What was predicted once is remembered for the process's
    life.

    Raises:
        InputError: if the model decides by values that only a real computation has.
    """
    from toolkit.planning.subject import predicted_footprint

    return predicted_footprint(run)


def predicted_parts(run: Run) -> dict[str, int] | None:
    """Returns the predicted bytes by the parts that are measured, `toolkit.memory.MemoryUse`'s; None if none can be."""
    from toolkit.errors import InputError
    from toolkit.strategies import STRATEGIES

    try:
        found = predicted(run)
    except InputError:
        return None
    wrapped = run.accelerator.num_processes > 1 and STRATEGIES[run.cfg.train.strategy]().wraps_model
    buckets = found.gradients if wrapped else 0  # the wrapper keeps gradients a second time, in buckets
    parts = {"parameters": found.parameters + found.buffers, "gradients": found.gradients,
             "optimizer_state": found.optimizer_state}  # fmt: skip
    peak = found.peak + buckets
    return {**parts, "rest": max(0, peak - sum(parts.values())), "train_peak": peak}

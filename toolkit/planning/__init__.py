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
    from toolkit.strategies import STRATEGIES

    try:
        found = predicted(run)
    except Exception:  # a run that has trained well must not fail by a table of its report
        return None
    train, several = run.cfg.train, run.accelerator.num_processes > 1
    # The wrapper keeps gradients a second time, in buckets; the outer optimizer has anchors and a momentum.
    wrapped = several and STRATEGIES[train.strategy]().wraps_model
    outer = several and not wrapped and train.local_sgd_outer_lr is not None
    besides = (wrapped + 2 * outer) * found.gradients
    parts = {"parameters": found.parameters + found.buffers, "gradients": found.gradients,
             "optimizer_state": found.optimizer_state}  # fmt: skip
    peak = found.peak + besides
    return {**parts, "rest": max(0, peak - sum(parts.values())), "train_peak": peak}

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

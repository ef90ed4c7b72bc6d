"""What a run has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass
class TrainState:
    """What a run has done; together with parameters and optimizer all that a resume needs.

    Position, order, augmentation and random numbers follow from `step`, so none of them is stored.
    """

    step: int = 0
    best_metric: float | None = None
    best_step: int | None = None
    loss_sum: float = 0.0
    """Summed loss since the last training line, over all ranks."""
    num_items: float = 0.0
    """Items since the last training line, over all ranks."""
    evaluated_step: int = -1
    """Last step that was evaluated on the validation rows."""
    ended: bool = False
    """Whether a callback has ended training before the last planned step."""
    skipped_steps: int = 0
    """Steps whose update the scaler of fp16 left out; the schedule did not count them."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Takes the values of a checkpoint; those that this version does not know are left out."""
        for field in fields(self):
            if field.name in saved:
                setattr(self, field.name, saved[field.name])

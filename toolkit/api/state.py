"""The progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass
class TrainState:
    """The progress of a run: together with parameters and optimizer state, everything that a resume needs.

    The position in the data, its order, augmentation and random numbers follow from `step` and are not stored.
    """

    step: int = 0
    best_metric: float | None = None
    best_step: int | None = None
    loss_sum: float = 0.0
    """Summed loss since the last training line, over all ranks."""
    num_items: float = 0.0
    """Items since the last training line, over all ranks."""
    total_loss: float = 0.0
    """Summed loss of all training lines of the run, over all ranks."""
    total_items: float = 0.0
    """Items of all training lines of the run, over all ranks."""
    evaluated_step: int = -1
    """Last step that was evaluated on the validation rows."""
    ended: bool = False
    """Whether a callback ended training before the last planned step."""
    skipped_steps: int = 0
    """Steps whose update the fp16 scaler skipped; the schedule does not count them."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Sets the fields from the values of a checkpoint; values that this version does not know are ignored."""
        for field in fields(self):
            if field.name in saved:
                setattr(self, field.name, saved[field.name])

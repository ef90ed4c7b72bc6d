"""The progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
    start_scores: dict[str, float] = field(default_factory=dict)
    """Validation scores before the first step (`eval.eval_on_start`), without prefix."""
    evaluation_is_due: bool = False
    """Whether a stop signal ended the evaluation after this step, which the resumed run does first."""
    ended: bool = False
    """Whether a callback ended training before the last planned step."""
    skipped_steps: int = 0
    """Steps without an update, because of the fp16 scaler or `train.non_finite`; the schedule does not count them."""
    left_out: list[int] = field(default_factory=list)
    """Steps whose update `train.non_finite` leaves out; after going back to a checkpoint, also one to come."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Sets the fields from the values of a checkpoint; values that this version does not know are ignored."""
        for each in fields(self):
            if each.name in saved:
                setattr(self, each.name, saved[each.name])

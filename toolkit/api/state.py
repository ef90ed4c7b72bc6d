"""The progress of a run, and the steps at which something is due."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any, NamedTuple

from toolkit.config.sections import Config


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
    """Steps whose update `train.non_finite` skips; after going back to a checkpoint, also one to come."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Sets the fields from the values of a checkpoint; values that this version does not know are ignored."""
        for each in fields(self):
            if each.name in saved:
                setattr(self, each.name, saved[each.name])


MOST_LINES = 100
"""Maximum number of training lines with `tracking.logging_steps: auto`."""


class Due(NamedTuple):
    """The actions due after a step."""

    log: bool
    evaluate: bool
    save: bool


@dataclass(frozen=True)
class Milestones:
    """When a run logs, evaluates, saves and ends, in steps; None means never."""

    total_steps: int
    steps_per_epoch: int
    eval_every: int | None
    save_every: int | None
    log_every: int

    @staticmethod
    def of(cfg: Config, steps_per_epoch: int) -> Milestones:
        """Resolves epochs, fractions and limits into steps."""
        total = cfg.train.max_steps
        if total <= 0:
            total = math.ceil(cfg.train.num_train_epochs * steps_per_epoch)
        return Milestones(
            total_steps=total,
            steps_per_epoch=steps_per_epoch,
            eval_every=_every(cfg.eval.eval_steps, total, steps_per_epoch),
            save_every=_every(cfg.checkpoint.save_steps, total, steps_per_epoch),
            log_every=_log_every(total) if cfg.tracking.logging_steps == "auto" else cfg.tracking.logging_steps,
        )

    def after(self, step: int) -> Due:
        """Returns the actions due after a step, counted from 1."""
        evaluate, save = (every is not None and step % every == 0 for every in (self.eval_every, self.save_every))
        return Due(step % self.log_every == 0 or step == self.total_steps, evaluate, save)


def _log_every(total: int) -> int:
    """Returns the smallest of 1, 2, 4 or 5 times a power of ten that gives at most `MOST_LINES` training lines."""
    return next(n * 10**power for power in count() for n in (1, 2, 4, 5) if total <= MOST_LINES * n * 10**power)


def _every(setting: float | str | None, total: int, steps_per_epoch: int) -> int | None:
    if setting is None:
        return None
    if setting == "epoch":
        return steps_per_epoch
    return int(setting) if float(setting) >= 1 else math.ceil(float(setting) * total)

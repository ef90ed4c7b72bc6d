"""When a run logs, evaluates, saves and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from toolkit.config.sections import Config

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

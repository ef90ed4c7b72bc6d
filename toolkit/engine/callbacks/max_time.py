"""Time limit: ends training after the step in which `train.max_time` is reached."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from toolkit.api.training import Callback, TrainingContext
from toolkit.base.console import say
from toolkit.distributed.collectives import all_sum

UNITS = (86400, 3600, 60, 1)
"""Seconds of each part of `train.max_time`."""


class MaxTime(Callback):
    """Counts seconds of training, including those before a resume; the main process's clock decides for all."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        parts = (context.run.cfg.train.max_time or "").split(":")
        self.limit = sum(int(part) * unit for part, unit in zip(parts, UNITS, strict=True))
        self.before, self.start = 0.0, time.monotonic()
        self.ended = False

    @property
    def used(self) -> float:
        """Training time so far, in seconds."""
        return self.before + time.monotonic() - self.start

    def after_update(self) -> None:
        """Ends training when the time limit is reached."""
        accelerator = self.context.run.accelerator
        (up,) = all_sum(accelerator, float(accelerator.is_main_process and self.used >= self.limit))
        if up and not self.context.over:
            say(f"stopping after step {self.context.state.step}: train.max_time is reached")
            self.ended = True
            self.context.end()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the training time, and whether the limit has ended the run."""
        return {}, {"used": self.used, "ended": self.ended}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the training time; a run that reached its limit continues if the limit was raised."""
        self.before, self.start = values["used"], time.monotonic()
        self.ended = values["ended"] and values["used"] >= self.limit
        if values["ended"] and not self.ended:
            self.context.state.ended = False

"""A limit of time: training ends after the step in which it is used up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from toolkit.base.console import say
from toolkit.distributed.collectives import all_sum
from toolkit.engine.callbacks.extensions import Extension
from toolkit.engine.session import Session

UNITS = (86400, 3600, 60, 1)
"""Seconds of each part of `train.max_time`."""


class MaxTime(Extension):
    """Counts the seconds of training, former sessions included; the main process's clock decides for all."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        parts = (session.run.cfg.train.max_time or "").split(":")
        self.limit = sum(int(part) * unit for part, unit in zip(parts, UNITS, strict=True))
        self.before, self.start = 0.0, time.monotonic()
        self.ended = False

    @property
    def used(self) -> float:
        """Seconds so far."""
        return self.before + time.monotonic() - self.start

    def after_update(self) -> None:
        """Ends training when the time is used up."""
        accelerator = self.session.run.accelerator
        (up,) = all_sum(accelerator, float(accelerator.is_main_process and self.used >= self.limit))
        if up and not self.session.over:
            say(f"stopping after step {self.session.state.step}: train.max_time is used up")
            self.ended = True
            self.session.end()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the time used, and whether it has ended the run."""
        return {}, {"used": self.used, "ended": self.ended}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Goes on counting; a run that it ended goes on where it was given more time since."""
        self.before, self.start = values["used"], time.monotonic()
        self.ended = values["ended"] and values["used"] >= self.limit
        if values["ended"] and not self.ended:
            self.session.state.ended = False

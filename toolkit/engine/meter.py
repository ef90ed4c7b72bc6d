"""Sums losses of the run, and items and times of the session, over training steps."""

from __future__ import annotations

import time
from statistics import fmean
from typing import Any

import torch

from toolkit.api.run import Run
from toolkit.api.state import TrainState
from toolkit.base.console import format_duration, say
from toolkit.distributed.collectives import data_sum, sum_dtype
from toolkit.engine.checkpointing import MEASURED_STEPS
from toolkit.system.phases import PhaseClock, named_seconds


class ProgressMeter:
    """Sums losses and items of the run, saved in its state, and the seconds of this session."""

    def __init__(self, run: Run, state: TrainState, phases: PhaseClock) -> None:
        self._run, self._state, self.phases = run, state, phases
        device = run.accelerator.device
        self._pending_loss = torch.zeros((), dtype=sum_dtype(device), device=device)
        self._lost_items = 0.0
        self._last: dict[str, float] = {}
        self._started_at = 0.0
        self._num_items = self._interval_items = self._interval_seconds = 0.0
        self.seconds = 0.0
        """Duration of this session's steps."""

    def start(self) -> None:
        """Starts the clock and the memory measurement of the next step, including the time to fetch its rows."""
        self._run.memory.train()
        self._started_at = time.perf_counter()

    def add(
        self,
        loss_sum: torch.Tensor,
        num_items: float,
        grad_norm: float,
        learning_rate: float,
        lost_items: float | None = None,
    ) -> None:
        """Adds a step without reading its loss; `lost_items` are this rank's, if it alone left its update out."""
        if lost_items is not None:
            loss_sum = torch.zeros_like(loss_sum)
            self._lost_items += lost_items
        self._state.num_items += num_items
        self._num_items += num_items
        self._interval_items += num_items
        self._pending_loss += loss_sum.detach()
        self._last = {"grad_norm": grad_norm, "learning_rate": learning_rate}

    def stop(self) -> float:
        """Stops the clock of a step and returns its time in seconds."""
        seconds = time.perf_counter() - self._started_at
        self.seconds += seconds
        self._interval_seconds += seconds
        return seconds

    def reduce(self) -> None:
        """Sums the losses of all ranks. Every rank must call it."""
        sums = float(self._pending_loss), self._lost_items
        loss, lost_items = data_sum(self._run.accelerator, self._run.mesh, *sums)
        self._state.loss_sum += loss
        self._state.num_items -= lost_items
        self._pending_loss.zero_()
        self._lost_items = 0.0

    @property
    def last_step(self) -> dict[str, float]:
        """Gradient norm and learning rate of the last step; empty before this session's first step."""
        return self._last

    @property
    def items_per_second(self) -> float:
        """Items per second of this session's steps."""
        return self._num_items / self.seconds if self.seconds else 0.0

    @property
    def train_loss(self) -> float | None:
        """Mean loss per item of the run, None without items."""
        state = self._state
        items = state.total_items + state.num_items
        return (state.total_loss + state.loss_sum) / items if items else None

    def line(self, epoch: float, metrics: dict[str, float]) -> dict[str, Any]:
        """Returns a line about the steps since the last line, with further `metrics`. Every rank must call it."""
        self.reduce()
        state = self._state
        line = {
            "step": state.step,
            "epoch": epoch,
            "loss": state.loss_sum / state.num_items if state.num_items else float("nan"),
            **self._last,
            **metrics,
            "num_items": state.num_items,
            "train_items_per_second": self.items_per_second,
            "interval_items_per_second": self._interval_items / self._interval_seconds
            if self._interval_seconds
            else 0.0,
            "peak_memory_bytes": self._run.memory.peak,
            **named_seconds(self.phases.since_last()),
        }
        # Sums of complete lines, so that a checkpoint between two lines does not change the order of additions.
        state.total_loss += state.loss_sum
        state.total_items += state.num_items
        state.loss_sum = state.num_items = self._interval_items = self._interval_seconds = 0.0
        return line


class TimeEstimate:
    """Says once, after a few steps, how long the training of this session takes."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        """Adds the duration of the next step."""
        if len(self._seconds) <= MEASURED_STEPS < self._num_steps - 1:
            self._seconds.append(seconds)
            if len(self._seconds) == MEASURED_STEPS + 1:
                total = format_duration(fmean(self._seconds[1:]) * self._num_steps)
                say(f"Training takes about {total} for {self._num_steps:,} steps, without evaluations.")

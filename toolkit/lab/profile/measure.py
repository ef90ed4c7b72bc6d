"""Times, traces and counts steps of a training, one after the other: each would change what the others measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from toolkit.api.batch import IGNORE_INDEX, Batch
from toolkit.lab.profile.flops import FlopCount
from toolkit.system.phases import WHOLE, active_clock

if TYPE_CHECKING:
    from torch import nn

    from toolkit.api.run import Run

RANGE = "phase: "
"""How the names of the phases begin in the trace."""


class Stages:
    """Measures steps; a `toolkit.api.run.Observer`.

    After `skipped` steps, `steps` are timed by phase, as many are traced, and the operations of one are counted. On a
    GPU, timed phases wait for its work, so that it counts where it was begun.

    Args:
        skipped: steps before them, at least 1.
        steps: steps to time, and to trace.
    """

    run: Run
    """The run, set before its first step."""

    def __init__(self, skipped: int, steps: int) -> None:
        self.skipped, self.steps = skipped, steps
        self.seconds: dict[str, float] = {}
        """Seconds of each phase in all timed steps."""
        self.shapes: list[Shape] = []
        """Sizes of all micro-batches of the timed steps."""
        self.counted: list[Shape] = []
        """The same of the step whose operations were counted."""
        self.flops = FlopCount()
        self.hidden_exchange = 0.0
        """Seconds of a timed step in which DDP's backward pass had nothing to do but wait for other processes."""
        self.profiler = profile(activities=_activities(), profile_memory=True)
        self._range: AbstractContextManager[Any] | None = None
        self._waits: list[float] = []

    @property
    def last(self) -> int:
        """Number of steps that the run must have."""
        return self.skipped + 2 * self.steps + 1

    def gradient(self, step: int, model: nn.Module) -> None:
        """Notes how long the exchange of a timed step's gradient took beyond its computation."""
        if self._is_timed(step) and isinstance(wrapped := self._wrapped(), DistributedDataParallel):
            facts = wrapped._get_ddp_logging_data()
            waits = facts.get("backward_comm_time", 0) - facts.get("backward_compute_comm_overlap_time", 0)
            self._waits.append(max(0, waits) / 1e9)

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Ends a stage after its last step, and begins the next one."""
        if self._is_timed(step):
            self.shapes += [shape_of(batch) for batch in batches]
        if step == self.skipped:
            self._begin_timing()
        elif step == self.skipped + self.steps:
            self._end_timing()
            self._begin_tracing()
        elif step == self.skipped + 2 * self.steps:
            self._end_tracing()
            self.flops.__enter__()
        elif step == self.last:
            self.flops.__exit__(None, None, None)
            self.counted = [shape_of(batch) for batch in batches]

    def _is_timed(self, step: int) -> bool:
        return self.skipped < step <= self.skipped + self.steps

    def _wrapped(self) -> Any:
        """Returns the model as accelerate has wrapped it."""
        strategy: Any = self.run.strategy
        return strategy.replica.model

    def _begin_timing(self) -> None:
        if isinstance(wrapped := self._wrapped(), DistributedDataParallel):
            wrapped._set_ddp_runtime_logging_sample_rate(1)
        if self.run.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()
            _clock().watcher = lambda before, after: torch.accelerator.synchronize()
        self.seconds = _clock().seconds()

    def _end_timing(self) -> None:
        begun, now = self.seconds, _clock().seconds()
        self.seconds = {phase: now[phase] - begun[phase] for phase in now if phase not in WHOLE}
        self.hidden_exchange = sum(self._waits) / len(self._waits) if self._waits else 0.0

    def _begin_tracing(self) -> None:
        self.profiler.start()
        self._annotate("", _clock().phase)
        _clock().watcher = self._annotate

    def _end_tracing(self) -> None:
        _clock().watcher = None
        if self._range is not None:
            self._range.__exit__(None, None, None)
        if self.run.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()
        self.profiler.stop()

    def _annotate(self, before: str, after: str) -> None:
        """Ends the trace's range of a phase, and begins that of the next one."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
        self._range = record_function(RANGE + after)
        self._range.__enter__()

    def write_trace(self, file: Path) -> None:
        """Writes the trace in Chrome's format."""
        self.profiler.export_chrome_trace(str(file))


@dataclass(frozen=True)
class Shape:
    """The size of a micro-batch.

    Args:
        values: numbers of its inputs.
        positions: positions of its sequences, of the source and of the target; 0 if its rows have no masks.
        real: those of them that are no padding.
        rows: its rows.
    """

    values: int
    positions: int
    real: int
    rows: int


def shape_of(batch: Batch) -> Shape:
    """Returns the size of a micro-batch."""
    inputs = {name: value for name, value in batch["inputs"].items() if isinstance(value, Tensor)}
    masks = [value for name, value in inputs.items() if name.endswith("attention_mask") and value.dim() == 2]
    real = [value != 0 for value in masks]
    if "decoder_input_ids" in inputs and "decoder_attention_mask" not in inputs:
        real.append(batch["labels"] != IGNORE_INDEX)
    return Shape(
        values=sum(value.numel() for value in inputs.values()),
        positions=sum(value.numel() for value in real),
        real=sum(int(value.sum()) for value in real),
        rows=int((batch["row_ids"] >= 0).sum()),
    )


def _clock() -> Any:
    clock = active_clock()
    assert clock is not None, "a step is part of a training"
    return clock


def _activities() -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]

"""Trains a few steps and measures them for a calibration; called in a separate process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from toolkit.api.device import looked_up
from toolkit.api.task import Batch
from toolkit.footprint.simulate import Subject, simulate
from toolkit.lab.training import trained


class _Watch:
    """Records the size and time of each step, and the largest micro-batch. See `toolkit.api.run.Observer`."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.largest: Batch | None = None
        self._largest_size = -1

    def gradient(self, step: int, model: nn.Module) -> None:
        """Does nothing."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Records a step."""
        (batch,) = batches  # calibrations do not accumulate
        size = sum(value.numel() for value in batch["inputs"].values() if hasattr(value, "numel"))
        self.steps.append((size, record["seconds"]))
        if size > self._largest_size:
            self._largest_size, self.largest = size, batch

    @property
    def seconds(self) -> float | None:
        """Seconds of a step with the largest micro-batch, or None if there was only one step.

        The first step is skipped, as it includes start-up. Times of smaller micro-batches are scaled up to the largest.
        The minimum is used, since other processes may slow down single steps.
        """
        return min((seconds * self._largest_size / size for size, seconds in self.steps[1:]), default=None)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, and returns the measurements with the prediction for the same rows.

    Args:
        job: as for `toolkit.lab.training.trained`.

    Returns:
        `memory` (measured bytes), `footprint` (predicted), `seconds` of a step or None, and `device`, its type.
    """
    watch = _Watch()
    with trained(job, watch) as (run, result):
        assert watch.largest is not None  # at least one step was trained
        subject = Subject(run.cfg, run.task, run.model.config, looked_up(watch.largest), run.accelerator.device)
        return {
            "memory": asdict(result.memory),
            "footprint": asdict(simulate(subject)),
            "seconds": watch.seconds,
            "device": run.accelerator.device.type,
        }

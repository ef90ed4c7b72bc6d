"""What a process does for a calibration: trains a few steps, and measures them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from toolkit.api.task import Batch
from toolkit.footprint.simulate import Subject, simulate
from toolkit.lab.training import trained


class _Watch:
    """Looks at each step: when it ended, and the micro-batch with the most in it. See `toolkit.api.run.Observer`."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.largest: Batch | None = None
        self._most = -1

    def gradient(self, step: int, model: nn.Module) -> None:
        """Nothing to see."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Notes the size and the time of a step, and the largest micro-batch."""
        (batch,) = batches  # nothing is accumulated here
        size = sum(value.numel() for value in batch["inputs"].values() if hasattr(value, "numel"))
        self.steps.append((size, record["seconds"]))
        if size > self._most:
            self._most, self.largest = size, batch

    @property
    def seconds(self) -> float | None:
        """Time of a step of the largest micro-batch; None of one step, which starts everything.

        Steps of smaller ones count as much longer as they are smaller; the shortest time is taken, since others may use
        the machine.
        """
        return min((seconds * self._most / size for size, seconds in self.steps[1:]), default=None)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains as a job says, and returns what was measured beside what would have been predicted for the same rows.

    Args:
        job: as for `toolkit.lab.training.trained`.

    Returns:
        `memory`, `footprint` (predicted), `seconds` of a step (or None) and the device's kind.
    """
    watch = _Watch()
    with trained(job, watch) as (run, result):
        assert watch.largest is not None  # there was a step
        subject = Subject(run.cfg, run.task, run.model.config, watch.largest, run.accelerator.device)
        return {
            "memory": asdict(result.memory),
            "footprint": asdict(simulate(subject)),
            "seconds": watch.seconds,
            "device": run.accelerator.device.type,
        }

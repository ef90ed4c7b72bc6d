"""Trains a few steps and measures them for a calibration; called in a separate process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from toolkit.api.batch import Batch, looked_up
from toolkit.footprint.simulate import Subject, simulate
from toolkit.lab.jobs.training import trained


class Watch:
    """Records the size and time of each step, and its largest micro-batch. See `toolkit.api.run.Observer`.

    A model without padding has another largest micro-batch than one with padding: that with the most tokens.
    """

    def __init__(self) -> None:
        self.largest: dict[bool, Batch] = {}
        """The largest micro-batch of a model with padding (False) and without (True)."""
        self._steps: list[tuple[dict[bool, int], float]] = []

    def gradient(self, step: int, model: nn.Module) -> None:
        """Does nothing."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Records a step."""
        for unpadded in (False, True):
            self.largest[unpadded] = max(
                [*batches, self.largest.get(unpadded, batches[0])], key=lambda batch: _size(batch, unpadded)
            )
        sizes = {unpadded: sum(_size(batch, unpadded) for batch in batches) for unpadded in (False, True)}
        self._steps.append((sizes, record["seconds"]))

    def seconds(self, unpadded: bool) -> float | None:
        """Returns the seconds of the largest micro-batch's step, or None if there was only one step.

        The first step is skipped, as it includes start-up. Times of smaller steps are scaled up to the largest
        micro-batch. The minimum is used, since other processes may slow down single steps.
        """
        largest = _size(self.largest[unpadded], unpadded)
        return min((seconds * largest / sizes[unpadded] for sizes, seconds in self._steps[1:]), default=None)


def _size(batch: Batch, unpadded: bool) -> int:
    """Returns the number of values of a micro-batch's inputs, or of those that its masks do not count as padding."""
    inputs = {name: value for name, value in batch["inputs"].items() if isinstance(value, Tensor)}
    masks = [int(value.sum()) for name, value in inputs.items() if name.endswith("attention_mask")]
    return sum(masks) if unpadded and masks else sum(value.numel() for value in inputs.values())


def measure_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, and returns the measurements with the prediction for the same rows.

    Args:
        job: as for `toolkit.lab.jobs.training.trained`.

    Returns:
        `memory` (measured bytes), `footprint` (predicted), `seconds` of a step or None, and `device`, its type.
    """
    watch = Watch()
    with trained(job, watch) as (run, result):
        batch = looked_up(watch.largest[run.unpadded])
        subject = Subject(run.cfg, run.task, run.model.config, batch, run.accelerator.device)
        return {
            "memory": asdict(result.memory),
            "footprint": asdict(simulate(subject)),
            "seconds": watch.seconds(run.unpadded),
            "device": run.accelerator.device.type,
        }

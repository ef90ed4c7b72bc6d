"""Corrects predictions with the measurements of a few real steps, and of the bandwidth, on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from toolkit.api.batch import Batch, looked_up
from toolkit.api.training import Callback
from toolkit.base.console import format_bytes
from toolkit.base.errors import RunError
from toolkit.config.keys import written
from toolkit.config.sections import ParallelConfig
from toolkit.footprint.simulate import Footprint, Subject, simulate
from toolkit.lab.collectives import bandwidth
from toolkit.lab.jobs.jobs import Launch
from toolkit.lab.jobs.training import FEW_STEPS, trained
from toolkit.lab.plan.estimates import Estimate
from toolkit.lab.plan.fit import Strategy
from toolkit.lab.tool import run_apart

STEPS = 3
MAX_FACTOR = 8.0
"""Largest correction factor: an allocator may hold several times the memory that a step with recomputation uses."""
SHARE_OF_FREE = 0.6
"""Share of the free memory that a measurement may use."""
CLEAR_BYTES = 64 * 2**20
"""Smallest difference between two predictions to calibrate with: measurements vary by some 20 MiB."""
ONE_DEVICE: dict[str, Any] = FEW_STEPS | {
    **{f"parallel.{name}": value for name, value in asdict(ParallelConfig()).items()},
    "train.max_steps": STEPS,
    "train.train_sampling_strategy": "random",
}
"""Settings of a run that is measured on a single device."""


Costs = Footprint | Estimate | Strategy
"""What is predicted for a step, on a single device or on each of several."""


@dataclass(frozen=True)
class Measured:
    """The measurements of one run."""

    footprint: Footprint  # the prediction for its largest micro-batch
    parameters: int  # bytes of weights and buffers
    gradients: int  # bytes of gradients
    optimizer_state: int  # bytes of the optimizer's state
    peak: int  # peak bytes during training steps, above the memory used before the model was built
    seconds: float | None  # time of a step with such micro-batches, or None if there were too few steps
    device: str  # type of the device

    @property
    def flops_per_second(self) -> float | None:
        """Floating-point operations per second in steps without accumulation, or None if no step was timed."""
        return self.footprint.flops / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Correction:
    """The relation between prediction and measurement: `peak = states + factor x passing + constant`."""

    # factor on memory that is allocated and freed within a step. It exceeds 1 because the C library cannot return freed
    # memory between blocks that are still in use, and because kernels allocate memory themselves
    factor: float = 1.0
    constant: int = 0  # bytes that every step needs: code and tables that libraries load on first use

    def peak(self, footprint: Costs) -> int:
        """Returns the expected measurement of the peak on this machine, in bytes."""
        return round(footprint.states + self.factor * footprint.passing + self.constant)


def fitted(small: tuple[int, Costs], large: tuple[int, Costs]) -> Correction:
    """Fits the correction to the measured peaks of a small and a large micro-batch and what was predicted for them.

    If their predictions differ too little to separate factor and constant, the factor is 1.
    """
    extra = [peak - costs.states for peak, costs in (small, large)]
    passing = [costs.passing for _, costs in (small, large)]
    span = passing[1] - passing[0]
    if span < CLEAR_BYTES:
        return Correction(1.0, max(0, extra[1] - passing[1]))
    factor = min(MAX_FACTOR, max(0.5, (extra[1] - extra[0]) / span))
    return Correction(factor, max(0, round(extra[1] - factor * passing[1])))


def measured(recipe: str, config: str, overrides: Sequence[str], rows: int, max_tokens: int | None = None) -> Measured:
    """Trains a few steps of `rows` rows in a separate process.

    A step is one micro-batch, unless the micro-batches have a token budget, `max_tokens`. Raises RunError if training
    fails, with the reason or the end of the output.
    """
    settings: dict[str, Any] = ONE_DEVICE | {
        "train.global_batch_size": None,
        "train.per_device_train_batch_size": rows,
        "train.gradient_accumulation_steps": 1,
        "train.max_tokens_per_batch": max_tokens,
    }
    files = {"recipe": str(Path(recipe).absolute()), "config": str(Path(config).absolute())}
    job = {**files, "overrides": [*overrides, *written(settings)]}
    try:
        found = run_apart("calibrate", job, Launch.of(None, 1))
    except RunError as error:
        raise RunError(f"--calibrate: training a few steps here failed: {error}") from error
    memory = found["memory"]
    return Measured(
        footprint=Footprint(**found["footprint"]), parameters=memory["parameters"], gradients=memory["gradients"],
        optimizer_state=memory["optimizer_state"], peak=memory["train_peak"], seconds=found["seconds"],
        device=found["device"],
    )  # fmt: skip


def calibrate(recipe: str, config: str, overrides: Sequence[str], rows: int) -> tuple[Correction, list[Measured]]:
    """Measures runs with a quarter of `rows` rows per micro-batch and with all, and fits the correction.

    Raises RunError if training fails.
    """
    runs = [measured(recipe, config, overrides, size) for size in sorted({max(1, rows // 4), rows})]
    small, large = runs[0], runs[-1]
    return fitted((small.peak, small.footprint), (large.peak, large.footprint)), runs


def serial_seconds(runs: Sequence[Measured]) -> float:
    """Returns the seconds of a step that do not grow with its rows: the optimizer's step and constant overhead."""
    small, large = runs[0], runs[-1]
    span = large.footprint.flops - small.footprint.flops
    if small.seconds is None or large.seconds is None or span <= 0:
        return 0.0
    return max(0.0, small.seconds - (large.seconds - small.seconds) / span * small.footprint.flops)


def rows_that_fit(footprint: Footprint) -> int:
    """Returns the rows to measure with: those of a micro-batch, or as many as this machine's memory fits."""
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available
    spare = SHARE_OF_FREE * free - footprint.states - footprint.gradients
    if spare <= 0:
        raise RunError(
            f"--calibrate: weights and optimizer state need {format_bytes(footprint.states)}, gradients "
            f"{format_bytes(footprint.gradients)}, and only {format_bytes(free)} are free here; remove --calibrate, or "
            "calibrate with a smaller model of the same kind"
        )
    return max(1, min(footprint.rows, round(footprint.rows * spare / max(1, footprint.passing))))


class Watch(Callback):
    """Records the size and time of each step, and its largest micro-batch.

    A model without padding has another largest micro-batch than one with padding: that with the most tokens.
    """

    def __init__(self) -> None:
        self.largest: dict[bool, Batch] = {}
        """The largest micro-batch of a model with padding (False) and without (True)."""
        self._steps: list[tuple[dict[bool, int], float]] = []

    def after_step(self, record: Mapping[str, float]) -> None:
        """Records a step."""
        batches = self.training.window
        for unpadded in (False, True):
            self.largest[unpadded] = max(
                [*batches, self.largest.get(unpadded, batches[0])], key=lambda batch: _size(batch, unpadded)
            )
        sizes = {unpadded: sum(_size(batch, unpadded) for batch in batches) for unpadded in (False, True)}
        self._steps.append((sizes, record["seconds"]))

    def seconds(self, unpadded: bool) -> float | None:
        """Returns the least seconds of a step with the largest micro-batch, or None if there was only one step.

        The first step is skipped, as it includes start-up. Times of smaller steps are scaled up to the largest
        micro-batch.
        """
        largest = _size(self.largest[unpadded], unpadded)
        return min((seconds * largest / sizes[unpadded] for sizes, seconds in self._steps[1:]), default=None)


def _size(batch: Batch, unpadded: bool) -> int:
    """Returns the number of values of a micro-batch's inputs, or of those that its masks do not count as padding."""
    inputs = {name: value for name, value in batch["inputs"].items() if isinstance(value, Tensor)}
    masks = [int(value.sum()) for name, value in inputs.items() if name.endswith("attention_mask")]
    return sum(masks) if unpadded and masks else sum(value.numel() for value in inputs.values())


def measure_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains the job of `toolkit.lab.jobs.training.trained`, and returns the measurements beside the prediction.

    They are `memory` (bytes), `footprint` (predicted for the same rows), `seconds` of a step or None, and `device`.
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


def measured_bandwidth() -> float:
    """Returns the `bandwidth` between two processes on the CPU of this machine."""
    try:
        return bandwidth(Launch(None, 2, {"CUDA_VISIBLE_DEVICES": ""}))
    except RunError as error:
        raise RunError(f"--calibrate: two processes cannot exchange data here; set --bandwidth\n  {error}") from error

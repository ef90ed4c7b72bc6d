"""What this machine adds to a plan: measured in a few real steps, each run in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toolkit.base.console import format_bytes
from toolkit.base.errors import RunError
from toolkit.config.overrides import written
from toolkit.config.sections import TrainConfig
from toolkit.footprint.footprint import Footprint
from toolkit.lab.jobs import Trial, run_trials

STEPS = 3
MOST_FACTOR = 8.0
"""An allocator may hold several times what a step that recomputes activations uses at any moment."""
MOST_OF_FREE = 0.6
CLEAR_BYTES = 64 * 2**20
"""Two measurements that are to differ by less than this tell nothing: a process holds some 20 MiB more or less."""
FEW_STEPS: dict[str, Any] = {
    **{f"train.{name}": getattr(TrainConfig(), name) for name in (
        "early_stopping_patience", "early_stopping_threshold", "max_time", "snapshot_ensemble", "auto_batch_size")},
    "train.lr_scheduler_type": "constant",
    "train.lr_scheduler_kwargs": {},
    "train.warmup_steps": 0,
    "train.max_steps": STEPS,
    "train.train_sampling_strategy": "random",
    "data.validation_file": None,
    "data.validation_split": 0,
    "data.test_file": None,
    "data.max_eval_samples": None,
    "trainer.args": {},
    "trainer.callbacks": [],
    "eval.eval_steps": None,
    "eval.metric_for_best_model": None,
    "checkpoint.save_steps": None,
    "checkpoint.resume": "none",
    "checkpoint.load_best_model_at_end": False,
    "checkpoint.push_to_hub": False,
    **dict.fromkeys(f"checkpoint.hub_{name}" for name in ("model_id", "private_repo", "revision")),
    "tracking.report_to": [],
    "tracking.run_name": None,
    "tracking.project": "finetune-toolkit",
}  # fmt: skip
"""Settings of a run that trains a few steps and does nothing else."""


@dataclass(frozen=True)
class Measured:
    """One measured run.

    Args:
        footprint: what was predicted for its largest micro-batch.
        parameters: bytes of weights and buffers.
        gradients: bytes.
        optimizer_state: bytes.
        peak: the most that training steps held above what was there before the model was built, in bytes.
        seconds: time of a step of such micro-batches, None if there were too few.
        device: kind of the device.
    """

    footprint: Footprint
    parameters: int
    gradients: int
    optimizer_state: int
    peak: int
    seconds: float | None
    device: str

    @property
    def flops_per_second(self) -> float | None:
        """What the device computes, accumulation left out."""
        return self.footprint.flops / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Correction:
    """What is between prediction and measurement: `peak = states + factor x passing + constant`.

    Args:
        factor: on what comes and goes within a step. The C library keeps much of what is freed between blocks that
            live longer, and the more so the more often memory changes hands; kernels have memory of their own.
        constant: bytes that any step takes: code and tables that libraries load when they are first used.
    """

    factor: float = 1.0
    constant: int = 0

    def peak(self, footprint: Footprint) -> int:
        """Returns the peak as it would be measured here, in bytes."""
        return round(footprint.states + self.factor * footprint.passing + self.constant)


def fitted(small: Measured, large: Measured) -> Correction:
    """Returns the correction that explains two measurements, of few rows and of many.

    Where they do not differ enough to tell factor and constant apart, all is taken for a constant.
    """
    extra = [run.peak - run.footprint.states for run in (small, large)]
    span = large.footprint.passing - small.footprint.passing
    if span < CLEAR_BYTES:
        return Correction(1.0, max(0, extra[1] - large.footprint.passing))
    factor = min(MOST_FACTOR, max(0.5, (extra[1] - extra[0]) / span))
    return Correction(factor, max(0, round(extra[1] - factor * large.footprint.passing)))


def measured(recipe: str, config: str, overrides: Sequence[str], rows: int) -> Measured:
    """Trains a few steps of micro-batches of `rows` rows in a process of its own.

    Raises:
        RunError: if they fail, with the reason or the end of the output.
    """
    with TemporaryDirectory(prefix="calibrate-") as name:
        folder = Path(name)
        settings: dict[str, Any] = FEW_STEPS | {
            "train.per_device_train_batch_size": rows,
            "train.gradient_accumulation_steps": 1,
            "output_dir": str(folder / "run"),
        }
        job = {
            "recipe": str(Path(recipe).absolute()),
            "config": str(Path(config).absolute()),
            "overrides": [*overrides, *written(settings)],
        }
        (outcome,) = run_trials([Trial("calibrate", job, folder / "outcome.json")], folder / "calibrate.log")
        if outcome.error is not None:
            raise RunError(f"--calibrate: training a few steps here failed: {outcome.error}")
        return _read(outcome.result)


def _read(found: Mapping[str, Any]) -> Measured:
    memory = found["memory"]
    return Measured(
        footprint=Footprint(**found["footprint"]),
        parameters=memory["parameters"],
        gradients=memory["gradients"],
        optimizer_state=memory["optimizer_state"],
        peak=memory["train_peak"],
        seconds=found["seconds"],
        device=found["device"],
    )


def calibrate(recipe: str, config: str, overrides: Sequence[str], rows: int) -> tuple[Correction, list[Measured]]:
    """Measures a run of `rows` rows in a micro-batch, and one of a quarter of them.

    Returns:
        The correction, and both measurements, the larger one last.
    """
    runs = [measured(recipe, config, overrides, size) for size in sorted({max(1, rows // 4), rows})]
    return fitted(runs[0], runs[-1]), runs


def serial_seconds(runs: Sequence[Measured]) -> float:
    """Returns the part of a step that does not grow with its rows: the optimizer's step, and what starts a pass."""
    small, large = runs[0], runs[-1]
    span = large.footprint.flops - small.footprint.flops
    if small.seconds is None or large.seconds is None or span <= 0:
        return 0.0
    return max(0.0, small.seconds - (large.seconds - small.seconds) / span * small.footprint.flops)


def rows_that_fit(footprint: Footprint) -> int:
    """Returns how many rows to measure with: a micro-batch, or less where this machine's memory is too small for it.

    Raises:
        RunError: if it does not even hold the weights and what belongs to them.
    """
    import psutil
    import torch

    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available
    spare = MOST_OF_FREE * free - footprint.states - footprint.gradients
    if spare <= 0:
        raise RunError(
            f"--calibrate: weights, gradients and optimizer state need {format_bytes(footprint.states)} and more, and "
            f"only {format_bytes(free)} are free here; plan without it, or calibrate a smaller model of the same kind"
        )
    return max(1, min(footprint.rows, round(footprint.rows * spare / max(1, footprint.passing))))

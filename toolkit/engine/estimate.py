"""Estimates how long a training takes and how much of the disk it fills, before both have happened."""

from __future__ import annotations

import shutil
from statistics import fmean

from toolkit.api.run import Run
from toolkit.api.state import Milestones
from toolkit.base.console import counted, format_bytes, format_duration, say
from toolkit.base.errors import CheckpointError
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint import store
from toolkit.config.messages import join
from toolkit.models.parts import saved_bytes
from toolkit.optim.presets import PRESETS
from toolkit.optim.schedules import cycle_ends, in_steps

MEASURED_STEPS = 5
"""Steps that the estimate of the time is based on; the first step, which is slower, is not one of them."""
NOTABLE_SHARE = 0.1
"""Share of the free disk above which a run says how much it will fill."""


class TimeEstimate:
    """Says once, after a few steps, how long the training of this session takes.

    Args:
        num_steps: number of steps of the session.
    """

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


def refuse_full_disk(run: Run, milestones: Milestones) -> None:
    """Refuses a run whose model, checkpoints and snapshots do not fit on the disk. Call it on the main process.

    The estimate counts weights and the optimizer's state, but no states of callbacks. What an earlier session has
    written stays until it is replaced, and is not free. A run that may end before its last step is not refused.

    Raises:
        CheckpointError: with the space that is needed, the space that is free, and the settings to change.
    """
    found = [(count, size, name) for count, size, name in _files(run, milestones) if count]
    needed, free = sum(count * size for count, size, _ in found), shutil.disk_usage(run.output_dir).free
    names = ["a " + name if count == 1 else counted(count, name) for count, _, name in found]
    sizes = [format_bytes(size) for _, size, _ in found]
    parts = join([f"{name} of {size}" for name, size in zip(names, sizes, strict=True)], "and")
    train = run.cfg.train
    limits = (train.max_time, train.early_stopping_patience, train.target_metric, run.cfg.trainer.callbacks)
    may_end_early = any(limits)
    if needed > free and not may_end_early:
        raise CheckpointError(
            f"output_dir: {run.output_dir.absolute()} has {format_bytes(free)} of free space, but this run needs "
            f"about {format_bytes(needed)}: {parts}. Free some space, use another output_dir, keep fewer checkpoints "
            "(checkpoint.save_total_limit) or write them less often (checkpoint.save_steps)."
        )
    if needed > NOTABLE_SHARE * free:
        say(f"The run will write about {format_bytes(needed)} ({parts}); {format_bytes(free)} are free.")


def _files(run: Run, milestones: Milestones) -> list[tuple[int, int, str]]:
    """Returns how many more models, checkpoints, snapshots and so on there will be at once, and the bytes of each."""
    model, weights, checkpoint = _sizes(run)
    # A complete copy of a split model stays on the disk while the model is written.
    is_collected = run.mesh.is_split or (run.cfg.parallel.backend == "deepspeed" and run.mesh.size > 1)
    train = in_steps(run.cfg.train, milestones.steps_per_epoch)
    ends = set(cycle_ends(train, milestones.total_steps)) if train.snapshot_ensemble else set()
    return [
        (1, model, "model"),
        (_new_checkpoints(run, milestones), checkpoint, "checkpoint"),
        (sum(step > _start(run) for step in ends), weights, "snapshot"),
        (int(is_collected), weights, "complete copy"),
    ]


def _start(run: Run) -> int:
    return run.resume.step if run.resume else 0


def _sizes(run: Run) -> tuple[int, int, int]:
    """Returns the bytes of the model, which with adapters is these alone, of all weights, and of a checkpoint."""
    model = run.strategy.outline or run.model
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    weights = saved_bytes(model)
    written = saved_bytes(model, run.cfg.model.peft.method != "none")
    return written, weights, weights + round(trained * PRESETS[run.cfg.train.optim].state_bytes)


def _new_checkpoints(run: Run, milestones: Milestones) -> int:
    """Returns how many more checkpoints there will be at once; a new one is complete before an old one is removed."""
    every, limit = milestones.save_every, run.cfg.checkpoint.save_total_limit
    if every is None:
        return 0
    total = milestones.total_steps
    coming = sum(step > _start(run) for step in {*range(every, total + 1, every), total})
    if limit is None:
        return coming
    existing = len(store.steps(RunFolder(run.output_dir).checkpoints))
    return min(coming, max(0, limit - existing) + 1)

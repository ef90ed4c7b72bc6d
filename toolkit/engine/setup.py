"""Resources that every engine opens before training and always closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.api.milestones import Milestones
from toolkit.api.run import Run
from toolkit.base.run_folder import RunFolder
from toolkit.data.batches import ended_workers, training_loader
from toolkit.data.order import WindowSampler
from toolkit.distributed.collectives import on_main
from toolkit.distributed.signals import StopSignal
from toolkit.engine.background_save import BackgroundSave
from toolkit.engine.estimate import refuse_full_disk
from toolkit.tracking.tracker import Tracker

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Setup:
    """Resources of one training.

    Args:
        loader: this rank's micro-batches.
        sampler: determines where the loader starts.
        milestones: steps at which to log, evaluate, save and end.
        tracker: receives the metrics.
        stop: the flag that a stop signal sets.
        background: writes checkpoints while training goes on.
    """

    loader: DataLoader
    sampler: WindowSampler
    milestones: Milestones
    tracker: Tracker
    stop: StopSignal
    background: BackgroundSave


@contextmanager
def opened(run: Run) -> Iterator[Setup]:
    """Opens the resources of a run's training and closes them when the block ends.

    Raises:
        CheckpointError: if the run does not fit on the disk.
    """
    loader, sampler = training_loader(run.data.train, run.task, run.processor, run.cfg, run.mesh)
    milestones = Milestones.of(run.cfg, sampler.order.windows_per_epoch)
    on_main(run.accelerator, refuse_full_disk, run, milestones)
    start_step = run.resume.step if run.resume else 0
    metrics = RunFolder(run.output_dir).metrics
    with (
        ended_workers(loader),
        StopSignal(run.accelerator.num_processes) as stop,
        Tracker(run.accelerator, run.cfg, metrics, start_step, (run.best.name,)) as tracker,
        BackgroundSave(run.accelerator.num_processes) as background,
    ):
        yield Setup(loader, sampler, milestones, tracker, stop, background)

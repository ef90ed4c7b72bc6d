"""What every engine opens before it trains, and closes whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.api.milestones import Milestones
from toolkit.api.run import Run
from toolkit.data.batches import ended_workers, training_loader
from toolkit.data.order import WindowSampler
from toolkit.distributed.signals import StopSignal
from toolkit.tracking.tracker import Tracker

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Setup:
    """Open for the time of one training.

    Args:
        loader: this rank's micro-batches.
        sampler: says where the loader starts.
        milestones: when things happen.
        tracker: where numbers are written.
        stop: the flag that SIGTERM sets.
    """

    loader: DataLoader
    sampler: WindowSampler
    milestones: Milestones
    tracker: Tracker
    stop: StopSignal


@contextmanager
def opened(run: Run) -> Iterator[Setup]:
    """Opens the training of a run."""
    loader, sampler = training_loader(run.data.train, run.task, run.processor, run.cfg, run.mesh)
    milestones = Milestones.of(run.cfg, sampler.order.windows_per_epoch)
    start_step = run.resume.step if run.resume else 0
    metrics = run.output_dir / "metrics.jsonl"
    with (
        ended_workers(loader),
        StopSignal(run.accelerator.num_processes) as stop,
        Tracker(run.accelerator, run.cfg, metrics, start_step, (run.best.name,)) as tracker,
    ):
        yield Setup(loader, sampler, milestones, tracker, stop)

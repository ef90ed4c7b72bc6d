"""Resources that every engine opens before training and always closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from toolkit.api.run import Run
from toolkit.api.state import Milestones
from toolkit.base.console import warn
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.state import SavedState
from toolkit.data.batching.batches import Windows, training_loader
from toolkit.data.batching.budget import over_budget
from toolkit.data.batching.order import WindowSampler
from toolkit.data.batching.workers import WatchedLoader, ended_workers, num_workers
from toolkit.distributed.collectives import on_main
from toolkit.distributed.stop import StopSignal
from toolkit.engine.background_save import BackgroundSave
from toolkit.engine.estimate import refuse_full_disk
from toolkit.engine.micro_batches import packs_tokens, training_processor
from toolkit.system.phases import PhaseClock, timed_phases
from toolkit.tracking.tracker import Tracker


@dataclass(frozen=True)
class Setup:
    """Resources of one training.

    Args:
        loader: this rank's micro-batches.
        windows: the same, grouped into windows.
        sampler: determines where the loader starts.
        milestones: steps at which to log, evaluate, save and end.
        tracker: receives the metrics.
        stop: the flag that a stop signal sets.
        background: writes checkpoints while training goes on.
        phases: receives the seconds of each phase.
    """

    loader: WatchedLoader
    windows: Windows
    sampler: WindowSampler
    milestones: Milestones
    tracker: Tracker
    stop: StopSignal
    background: BackgroundSave
    phases: PhaseClock


@contextmanager
def opened(run: Run) -> Iterator[Setup]:
    """Opens the resources of a run's training and closes them when the block ends.

    Raises:
        CheckpointError: if the run does not fit on the disk.
    """
    workers = num_workers(run.cfg.train, run.task, run.accelerator.device)
    loader, sampler = training_loader(
        run.data.train, run.task, training_processor(run), run.cfg, run.mesh, workers, run.data.kept, packs_tokens(run)
    )
    _note_long_rows(run)
    milestones = Milestones.of(run.cfg, sampler.order.windows_per_epoch)
    on_main(run.accelerator, refuse_full_disk, run, milestones)
    start_step, mark = (run.resume.step, SavedState.from_json(run.resume.state).metrics) if run.resume else (0, None)
    metrics = RunFolder(run.output_dir).metrics
    with (
        ended_workers(loader),
        StopSignal(run.accelerator.num_processes) as stop,
        Tracker(run.accelerator, run.cfg, metrics, start_step, (run.best.name,), mark, run.trackers) as tracker,
        BackgroundSave(run.accelerator.num_processes) as background,
        timed_phases() as phases,
    ):
        yield Setup(loader, Windows(loader, sampler), sampler, milestones, tracker, stop, background, phases)


def _note_long_rows(run: Run) -> None:
    """Says which rows are longer than a token budget."""
    budgets = [("train", run.cfg.train.max_tokens_per_batch, run.data.train)]
    budgets += [("eval", run.cfg.eval.max_tokens_per_batch, data.features) for data in run.data.evals.values()]
    for section, tokens, features in budgets:
        for note in over_budget(f"{section}.max_tokens_per_batch", tokens, features, run.task.modality):
            warn(note)

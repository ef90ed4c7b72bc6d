"""Saves and restores the checkpoints of a training, also in the background, and estimates their size."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.api.run import ASYNC_SAVE, Checkpoint, Run
from toolkit.api.state import Milestones
from toolkit.api.strategy import Strategy
from toolkit.api.training import Callback, Training
from toolkit.base.console import counted, format_bytes, say, warn
from toolkit.base.errors import CheckpointError, ToolkitError
from toolkit.base.processes import STOP_SIGNALS, Thread
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint import contents, store
from toolkit.checkpoint.manifest import require_intact
from toolkit.checkpoint.planning import Copy, Group, Snapshot, planned
from toolkit.checkpoint.state import SavedState, changed_evaluation
from toolkit.checkpoint.writing import NewCheckpoint, commit
from toolkit.config.messages import join
from toolkit.distributed.collectives import on_every, on_main, peers_of_run
from toolkit.distributed.stop import StopSignal
from toolkit.engine.non_finite import require_finite
from toolkit.models.parts import saved_bytes
from toolkit.optim import schedules
from toolkit.optim.presets import PRESETS
from toolkit.optim.schedules import cycle_ends, in_steps
from toolkit.system.phases import phase
from toolkit.tracking.jsonl import mark_of

PATIENCE_SECONDS = 60.0
"""How long a run that failed waits for a checkpoint that other processes, which may be gone, write too."""


class Flight(Enum):
    """Where a checkpoint that a thread writes is, and what the training may do meanwhile."""

    IDLE = "there is none: the next one may start"
    COPYING = "what is saved must not change before `wait_for_copy`"
    WRITING = "copied: training continues, and the run may not end before `join`"
    WRITTEN = "complete: `join` returns at once"
    FAILED = "it cannot be written: `join` raises why"


class BackgroundSave:
    """A thread that writes a checkpoint; at the end of the block it has ended."""

    def __init__(self, num_processes: int = 1) -> None:
        self._num_processes = num_processes
        self._thread: Thread | None = None
        self._copy: Copy | None = None
        self._error: BaseException | None = None
        self.state = Flight.IDLE
        """Set by `start` and `join` to COPYING and IDLE, and by the thread to the others."""
        self.written_at: float | None = None
        """Time (`time.monotonic`) when the last checkpoint was complete, or None."""

    def __enter__(self) -> BackgroundSave:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._thread is None:
            return
        # After an error of this process alone, others may be gone, which write the checkpoint too.
        alone = error is not None and not (isinstance(error, ToolkitError) and error.shared)
        self._thread.join(PATIENCE_SECONDS if alone and self._num_processes > 1 else None)
        if self._error is not None and self._error is not error:
            warn(f"{self._error}.")
        elif self._thread.is_alive():
            warn(f"the checkpoint in flight is not complete after {PATIENCE_SECONDS:.0f} s; the one before it is kept")

    def start(self, copy: Copy, write: Callable[[], None]) -> None:
        """Starts a thread that completes copies and writes them."""
        assert self.state is Flight.IDLE, "one checkpoint at a time"
        self._copy, self.state = copy, Flight.COPYING
        thread = Thread(lambda: self._run(copy, write), "checkpoint")
        thread.start()
        self._thread = thread

    def wait_for_copy(self) -> None:
        """Returns when what is saved may change."""
        if self._copy is not None:
            self._copy.wait()

    def join(self) -> None:
        """Waits until the checkpoint is written. Raises ToolkitError if it cannot be written."""
        if self._thread is not None:
            self._thread.join()
        error, self._error = self._error, None
        self._thread, self._copy, self.state = None, None, Flight.IDLE
        if error is not None:
            raise error

    def _run(self, copy: Copy, write: Callable[[], None]) -> None:
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they must reach the main thread, which may wait
        try:
            copy.run()
            self.state = Flight.WRITING
            write()
            self.written_at, self.state = time.monotonic(), Flight.WRITTEN
        except BaseException as error:  # raised by `join`
            self._error, self.state = error, Flight.FAILED


def restore_progress(content: SavedState, training: Training) -> bool:
    """Restores counters, schedule and loss scale; returns whether metrics can be compared with those to come."""
    state, run = training.state, training.run
    state.restore(content.train)
    schedules.seek(training.schedule, state.step - state.skipped_steps)
    if run.accelerator.scaler is not None and content.scaler is not None:
        run.accelerator.scaler.load_state_dict(content.scaler)
    limits = {name for name, values in content.callbacks.items() if values.get("ended")}
    if limits and not limits & training.callbacks.keys():
        state.ended = False  # the limit that ended the run is gone
    if changes := changed_evaluation(content.identity, run.identity):
        say(f"metrics cannot be compared with those before ({changes}): tracking of the best one restarts")
        state.best_metric, state.best_step = None, None
    return not changes


def note_rate(content: SavedState, training: Training) -> None:
    """Says that the learning rate jumps, because the run now has another length than the checkpoint's."""
    cfg, milestones, state = training.run.cfg, training.milestones, training.state
    names = ("max_steps", "num_train_epochs")
    former = {name: content.identity.get(f"train.{name}", getattr(cfg.train, name)) for name in names}
    total = Milestones.of(replace(cfg, train=replace(cfg.train, **former)), milestones.steps_per_epoch).total_steps
    step, scale = state.step - state.skipped_steps, getattr(training.schedule.lr_lambdas[0], "scale", 1.0)
    shape = schedules.factor_of(in_steps(cfg.train, milestones.steps_per_epoch), total).shape
    (now, *_), base = training.schedule.get_last_lr(), training.schedule.base_lrs[0] * scale
    if step and now != base * shape(step):
        say(
            f"the run now has {milestones.total_steps:,} steps instead of {total:,}, and its learning rate follows the "
            f"{cfg.train.lr_scheduler_type} schedule over all of them: {base * shape(step - 1):.3g} in step {step:,}, "
            f"{now:.3g} from step {step + 1:,} on. To go on with a low rate, start a new run from the model of this "
            "one, with a lower train.learning_rate"
        )


Kept = tuple[Mapping[str, "Tensor"], dict[str, Any]]
"""State of the strategy or of a callback in a checkpoint: tensors, and JSON-able values."""


class Checkpointer:
    """Writes and reads a training's checkpoints; the deadline of `stop` is suspended while processes wait for a writer.

    With `checkpoint.async_save`, `save` returns once a copy of everything that is saved is begun, and a thread writes
    it. Before anything changes parameters or the optimizer's state, `wait_for_copy` must be called.
    """

    def __init__(
        self,
        training: Training,
        stop: StopSignal,
        background: BackgroundSave,
        engine_state: Callable[[], dict[str, Any]],
        on_save: Callable[[], None],
    ) -> None:
        self.training, self._stop, self.background = training, stop, background
        self._engine_state, self._on_save = engine_state, on_save
        self._peers, self._snapshot = peers_of_run(), Snapshot()
        self._processor: dict[str, bytes] = {}
        self._saved: tuple[int, bool] | None = None
        self._written_at: float | None = None

    @property
    def written_at(self) -> float | None:
        """Time (`time.monotonic`) when the last checkpoint of this session was complete, or None."""
        return max(filter(None, (self._written_at, self.background.written_at)), default=None)

    @property
    def copy_bytes(self) -> int:
        """Memory of the copy of a checkpoint on this process, in bytes."""
        return self._snapshot.size

    @property
    def is_saved(self) -> bool:
        """Whether the newest checkpoint is of this step and records whether training ended with it."""
        state = self.training.state
        return self._saved == (state.step, state.ended)

    def forget(self) -> None:
        """Makes the next save write the step of the newest checkpoint again."""
        self._saved = None

    def save(self, now: bool = False) -> None:
        """Writes a checkpoint of this step, or begins to unless `now`, then removes surplus ones; called by every rank.

        Raises RunError on every rank if the model is not finite, or this checkpoint or the one before cannot be
        written.
        """
        self.join()
        training, run = self.training, self.training.run
        run.strategy.synchronize(for_checkpoint=True)
        model = run.strategy.own_parameters()
        require_finite(run.accelerator, model, training.state.step)
        new = self._new_checkpoint(model)
        self._saved = training.state.step, training.state.ended
        if run.resolved.get(ASYNC_SAVE) and not now:
            plans, copy = self._peers.on_every(self._snapshot.begin, new.plans)
            self.background.start(copy, partial(commit, self._peers, replace(new, plans=plans)))
            return
        with self._stop.unhurried():
            commit(self._peers, new)
        self._written_at = time.monotonic()
        self._on_save()

    def wait_for_copy(self) -> None:
        """Waits until parameters and the optimizer's state may change."""
        if self.background.state is not Flight.COPYING:
            return
        with phase("save"), self._stop.unhurried():
            self.background.wait_for_copy()

    def join(self) -> None:
        """Waits until the checkpoint in flight, if any, is written. Every rank must call it.

        Raises RunError on every rank, if it cannot be written.
        """
        if self.background.state is Flight.IDLE:
            return
        with phase("save"), self._stop.unhurried():
            self._peers.on_every(self.background.join)
        self._on_save()

    def flags(self) -> tuple[float, float]:
        """Returns whether the checkpoint in flight has failed, and whether it is written, on this rank."""
        state = self.background.state
        return float(state is Flight.FAILED), float(state is Flight.WRITTEN)

    def join_if(self, failed: float, written: float) -> None:
        """Joins a checkpoint that failed on any rank or is written on all: sums of `flags` over all ranks."""
        if failed or written == self._peers.size:
            self.join()

    def _new_checkpoint(self, model: Mapping[str, Tensor]) -> NewCheckpoint:
        """Returns what a checkpoint of this step holds; tensors are those of the training."""
        training, run = self.training, self.training.run
        kept = {name: found for name, part in self._parts().items() if (found := part.state()) is not None}
        # A stage of a pipeline may have no tensors of a callback that others have.
        saved = set(chain(*self._peers.objects([name for name, (tensors, _) in kept.items() if tensors])))
        groups = [
            contents.model_group(model),
            contents.optimizer_group(*run.strategy.own_optimizer()),
            *(Group(name, tensors) for name, (tensors, _) in kept.items() if name in saved),
        ]
        checkpoint = run.cfg.checkpoint
        sharded = checkpoint.format == "sharded"
        return NewCheckpoint(
            root=RunFolder(run.output_dir).checkpoints,
            step=training.state.step,
            plans=[planned(self._peers, group, spread=sharded) for group in groups],
            files=self._peers.on_every(self._files, {name: values for name, (_, values) in kept.items()}),
            sharded=sharded,
            keep=checkpoint.save_total_limit,
            best=training.state.best_step if checkpoint.load_best_model_at_end else None,
        )

    def _files(self, values: Mapping[str, dict[str, Any]]) -> dict[str, bytes]:
        """Returns the files that hold no tensors, on the main process; the processor never changes."""
        training, run = self.training, self.training.run
        if self._peers.rank > 0:
            return {}
        try:
            self._processor = self._processor or contents.processor_files(run.processor, run.output_dir)
            mark = mark_of(RunFolder(run.output_dir).metrics)
        except OSError as error:
            raise store.not_written(self._folder(training.state.step), error) from error
        scaler = run.accelerator.scaler
        state = SavedState(
            train=asdict(training.state),
            identity=run.identity,
            callbacks=values,
            scaler=None if scaler is None else scaler.state_dict(),
            metrics=mark,
            **self._engine_state(),
        )
        return contents.state_file(state.to_json()) | self._processor

    def restore(self, saved: Checkpoint) -> None:
        """Restores parameters, optimizer, schedule, counters, strategy and callbacks from a checkpoint.

        Raises CheckpointError if the checkpoint does not match the model or the optimizer; DamagedCheckpoint on every
        rank, if any rank found a damaged file.
        """
        self.join()
        training, run = self.training, self.training.run
        with run.strategy.loading(training.bare_model, training.optimizer) as (model, optimizer):
            kept = on_every(run.accelerator, self._load, saved, model, optimizer)
        content, state = SavedState.from_json(saved.state), training.state
        comparable = restore_progress(content, training)
        best = state.best_step if run.cfg.checkpoint.load_best_model_at_end else None
        if best not in (None, state.step) and not self._folder(best).is_dir():
            say(f"the best checkpoint (step {best}) is missing; tracking of the best metric restarts")
            state.best_metric, state.best_step = None, None
        for part, (tensors, values) in kept:
            try:
                part.restore(tensors, values)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise store.not_restored(saved.path, part, error) from error
            if not comparable and part is not run.strategy:
                part.forget_evaluations()
        note_rate(content, training)
        if saved.path.parent != self._folder(state.step).parent:  # that of another run, and not saved in this one yet
            return
        if run.accelerator.is_main_process:
            store.prune_behind(saved.path, run.cfg.checkpoint.save_total_limit, () if best is None else {best})
        self._saved = (state.step, state.ended)

    def _load(self, saved: Checkpoint, model: nn.Module, optimizer: Optimizer) -> list[tuple[Any, Kept]]:
        """Loads all tensors and returns those of the strategy and of callbacks."""
        run = self.training.run
        self._load_model(saved, model)
        contents.load_optimizer_into(saved, optimizer, model, run.mesh, run.strategy.outline)
        return list(self._kept(saved))

    def _load_model(self, saved: Checkpoint, model: nn.Module) -> None:
        run = self.training.run
        contents.load_model_into(saved, model, run.mesh, run.strategy.outline)

    def load_best(self) -> bool:
        """Replaces the last step's parameters by the best step's; returns False if that checkpoint is damaged."""
        self.join()
        training, run = self.training, self.training.run
        path = self._folder(training.state.best_step)
        try:
            if not self.is_saved:  # a damaged file is found only after it has replaced the parameters
                on_main(run.accelerator, require_intact, path)
            with run.strategy.loading(training.bare_model, training.optimizer) as (model, _):
                best, kept = on_every(run.accelerator, self._load_best, path, model)
            on_every(run.accelerator, self._tell_of_best, best, kept)
        except CheckpointError as error:
            warn(f"{error}; keeping the model of the last step")
            if self.is_saved:
                last = store.open_checkpoint(self._folder(training.state.step))
                with run.strategy.loading(training.bare_model, training.optimizer) as (model, optimizer):
                    on_every(run.accelerator, self._load, last, model, optimizer)
            return False
        return True

    def _load_best(self, path: Path, model: nn.Module) -> tuple[Checkpoint, list[tuple[Any, Kept]]]:
        """Loads the parameters of the best checkpoint; returns it with the tensors of callbacks."""
        best = store.open_checkpoint(path)
        self._load_model(best, model)
        return best, list(self._kept(best))

    def _tell_of_best(self, best: Checkpoint, kept: list[tuple[Any, Kept]]) -> None:
        for part, (tensors, values) in kept:
            if part is not self.training.run.strategy:
                part.on_best_loaded(best, tensors, values)

    def _folder(self, step: int | None) -> Path:
        return RunFolder(self.training.run.output_dir).checkpoint(step).path

    def _parts(self) -> dict[str, Strategy | Callback]:
        """Returns the strategy and the callbacks, by their names in checkpoints."""
        strategy = self.training.run.strategy
        return {strategy.name: strategy, **self.training.callbacks}

    def _kept(self, saved: Checkpoint) -> Iterator[tuple[Any, Kept]]:
        """Yields each part with its state in a checkpoint; parts that were not saved are skipped."""
        values = SavedState.from_json(saved.state).callbacks
        for name, part in self._parts().items():
            if name in values:
                yield part, (contents.load_tensors(saved, name, self.training.run.mesh), dict(values[name]))


MEASURED_STEPS = 5
"""Steps that the estimate of the time is based on; the first step, which is slower, is not one of them."""
NOTABLE_SHARE = 0.1
"""Share of the free disk above which a run says how much it will fill."""


def require_disk_space(run: Run, milestones: Milestones) -> None:
    """Raises CheckpointError if what the run will write does not fit; call it on the main process."""
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

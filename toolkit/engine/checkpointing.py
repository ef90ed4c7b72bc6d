"""Saves and restores the checkpoints of a training, and loads the best one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.run import ASYNC_SAVE, Checkpoint
from toolkit.api.strategy import Strategy
from toolkit.api.training import Callback, TrainingContext
from toolkit.base.console import say, warn
from toolkit.base.errors import CheckpointError
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint import contents, store
from toolkit.checkpoint.manifest import refuse_damaged
from toolkit.checkpoint.planning import Group, Snapshot, planned
from toolkit.checkpoint.state import SavedState
from toolkit.checkpoint.writing import NewCheckpoint, commit
from toolkit.distributed.collectives import on_every, on_main, peers_of_run
from toolkit.distributed.non_finite import refuse_non_finite
from toolkit.distributed.stop import StopSignal
from toolkit.engine.background_save import BackgroundSave
from toolkit.engine.progress import restore_progress
from toolkit.system.phases import phase
from toolkit.tracking.jsonl import mark_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Kept = tuple[Mapping[str, "Tensor"], dict[str, Any]]
"""State of the strategy or of a callback in a checkpoint: tensors, and JSON-able values."""


class Checkpointer:
    """Writes and reads a training's checkpoints.

    With `checkpoint.async_save`, `save` returns once a copy of everything that is saved is begun, and a thread writes
    it. Before anything changes parameters or the optimizer's state, `wait_for_copy` must be called.

    Args:
        context: the training.
        stop: the flag that a stop signal sets; its deadline is suspended while processes wait for one that writes.
        background: the thread.
        engine_state: returns the engine's own JSON-able state, by name.
        on_save: called on every rank after a checkpoint has been written.
    """

    def __init__(
        self,
        context: TrainingContext,
        stop: StopSignal,
        background: BackgroundSave,
        engine_state: Callable[[], dict[str, Any]],
        on_save: Callable[[], None],
    ) -> None:
        self._context, self._stop, self._background = context, stop, background
        self._engine_state, self._on_save = engine_state, on_save
        self._peers, self._snapshot = peers_of_run(), Snapshot()
        self._processor: dict[str, bytes] = {}
        self._saved: tuple[int, bool] | None = None
        self._written_at: float | None = None

    @property
    def written_at(self) -> float | None:
        """Time (`time.monotonic`) when the last checkpoint of this session was complete, or None."""
        return max(filter(None, (self._written_at, self._background.written_at)), default=None)

    @property
    def copy_bytes(self) -> int:
        """Memory of the copy of a checkpoint on this process, in bytes."""
        return self._snapshot.size

    @property
    def is_saved(self) -> bool:
        """Whether the newest checkpoint is of this step and records whether training ended with it."""
        state = self._context.state
        return self._saved == (state.step, state.ended)

    def forget(self) -> None:
        """Makes the next save write the step of the newest checkpoint again."""
        self._saved = None

    def save(self, now: bool = False) -> None:
        """Writes a checkpoint of this step, or begins to, then removes surplus ones. Every rank must call it.

        Args:
            now: whether to return only when it is written.

        Raises:
            RunError: on every rank, if the model is not finite, or this checkpoint or the one before cannot be written.
        """
        self.join()
        context, run = self._context, self._context.run
        run.strategy.settle(for_checkpoint=True)
        model = run.strategy.own_parameters()
        refuse_non_finite(run.accelerator, model, context.state.step)
        new = self._new_checkpoint(model)
        self._saved = context.state.step, context.state.ended
        if run.resolved.get(ASYNC_SAVE) and not now:
            plans, copy = self._peers.on_every(self._snapshot.begin, new.plans)
            self._background.start(copy, partial(commit, self._peers, replace(new, plans=plans)))
            return
        with self._stop.unhurried():
            commit(self._peers, new)
        self._written_at = time.monotonic()
        self._on_save()

    def wait_for_copy(self) -> None:
        """Waits until parameters and the optimizer's state may change."""
        if not self._background.is_copying:
            return
        with phase("save"), self._stop.unhurried():
            self._background.wait_for_copy()

    def join(self) -> None:
        """Waits until the checkpoint in flight, if any, is written. Every rank must call it.

        Raises:
            RunError: on every rank, if it cannot be written.
        """
        if not self._background.in_flight:
            return
        with phase("save"), self._stop.unhurried():
            self._peers.on_every(self._background.join)
        self._on_save()

    def flags(self) -> tuple[float, float]:
        """Returns whether the checkpoint in flight has failed, and whether it is written, on this rank."""
        return float(self._background.has_failed), float(self._background.is_written)

    def heed(self, failed: float, written: float) -> None:
        """Ends the flight of a checkpoint that failed on any rank or is written on all.

        Args:
            failed: sum of the first of `flags` over all ranks.
            written: sum of the second one.

        Raises:
            RunError: on every rank, if it cannot be written.
        """
        if failed or written == self._peers.size:
            self.join()

    def _new_checkpoint(self, model: Mapping[str, Tensor]) -> NewCheckpoint:
        """Returns what a checkpoint of this step holds; tensors are those of the training."""
        context, run = self._context, self._context.run
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
            step=context.state.step,
            plans=[planned(self._peers, group, spread=sharded) for group in groups],
            files=self._peers.on_every(self._files, {name: values for name, (_, values) in kept.items()}),
            sharded=sharded,
            keep=checkpoint.save_total_limit,
            best=context.state.best_step if checkpoint.load_best_model_at_end else None,
        )

    def _files(self, values: Mapping[str, dict[str, Any]]) -> dict[str, bytes]:
        """Returns the files that hold no tensors, on the main process; the processor never changes."""
        context, run = self._context, self._context.run
        if self._peers.rank > 0:
            return {}
        try:
            self._processor = self._processor or contents.processor_files(run.processor, run.output_dir)
            mark = mark_of(RunFolder(run.output_dir).metrics)
        except OSError as error:
            raise store.not_written(self._folder(context.state.step), error) from error
        scaler = run.accelerator.scaler
        state = SavedState(
            train=asdict(context.state),
            identity=run.identity,
            callbacks=values,
            scaler=None if scaler is None else scaler.state_dict(),
            metrics=mark,
            **self._engine_state(),
        )
        return contents.state_file(state.to_json()) | self._processor

    def restore(self, saved: Checkpoint) -> None:
        """Restores parameters, optimizer, schedule, counters, strategy and callbacks from a checkpoint.

        Raises:
            CheckpointError: if the checkpoint does not match the model or the optimizer.
            DamagedCheckpoint: on every rank, if any rank found a damaged file.
        """
        self.join()
        context, run = self._context, self._context.run
        with run.strategy.loading(context.bare_model, context.optimizer) as (model, optimizer):
            kept = on_every(run.accelerator, self._load, saved, model, optimizer)
        content, state = SavedState.from_json(saved.state), context.state
        comparable = restore_progress(content, context)
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
        if saved.path.parent != self._folder(state.step).parent:  # that of another run, and not saved in this one yet
            return
        if run.accelerator.is_main_process:
            store.prune_behind(saved.path, run.cfg.checkpoint.save_total_limit, () if best is None else {best})
        self._saved = (state.step, state.ended)

    def _load(self, saved: Checkpoint, model: nn.Module, optimizer: Optimizer) -> list[tuple[Any, Kept]]:
        """Loads all tensors and returns those of the strategy and of callbacks."""
        run = self._context.run
        self._load_model(saved, model)
        contents.load_optimizer_into(saved, optimizer, model, run.mesh, run.strategy.outline)
        return list(self._kept(saved))

    def _load_model(self, saved: Checkpoint, model: nn.Module) -> None:
        run = self._context.run
        contents.load_model_into(saved, model, run.mesh, run.strategy.outline)

    def load_best(self) -> bool:
        """Replaces the last step's parameters by the best step's.

        Returns:
            Whether they were replaced; False if the best checkpoint is damaged.

        Raises:
            RunError: on every rank, if the checkpoint in flight cannot be written.
        """
        self.join()
        context, accelerator = self._context, self._context.run.accelerator
        path = self._folder(context.state.best_step)
        try:
            if not self.is_saved:  # a damaged file is found only after it has replaced the parameters
                on_main(accelerator, refuse_damaged, path)
            with self._loading() as model:
                best, kept = on_every(accelerator, self._load_best, path, model)
            on_every(accelerator, self._tell_of_best, best, kept)
        except CheckpointError as error:
            warn(f"{error}; keeping the model of the last step")
            if self.is_saved:
                last = store.open_checkpoint(self._folder(context.state.step))
                with context.run.strategy.loading(context.bare_model, context.optimizer) as (model, optimizer):
                    on_every(accelerator, self._load, last, model, optimizer)
            return False
        return True

    def _tell_of_best(self, best: Checkpoint, kept: list[tuple[Any, Kept]]) -> None:
        for part, (tensors, values) in kept:
            if part is not self._context.run.strategy:
                part.on_best_loaded(best, tensors, values)

    @contextmanager
    def _loading(self) -> Iterator[nn.Module]:
        """Yields the model to load parameters into."""
        context = self._context
        with context.run.strategy.loading(context.bare_model, context.optimizer) as (model, _):
            yield model

    def _load_best(self, path: Path, model: nn.Module) -> tuple[Checkpoint, list[tuple[Any, Kept]]]:
        """Loads the parameters of the best checkpoint; returns it with the tensors of callbacks."""
        best = store.open_checkpoint(path)
        self._load_model(best, model)
        return best, list(self._kept(best))

    def _folder(self, step: int | None) -> Path:
        return RunFolder(self._context.run.output_dir).checkpoint(step).path

    def _parts(self) -> dict[str, Strategy | Callback]:
        """Returns the strategy and the callbacks, by their names in checkpoints."""
        strategy = self._context.run.strategy
        return {strategy.name: strategy, **self._context.callbacks}

    def _kept(self, saved: Checkpoint) -> Iterator[tuple[Any, Kept]]:
        """Yields each part with its state in a checkpoint; parts that were not saved are skipped."""
        values = SavedState.from_json(saved.state).callbacks
        for name, part in self._parts().items():
            if name in values:
                yield part, (contents.load_tensors(saved, name, self._context.run.mesh), dict(values[name]))

"""Saves, restores and prunes the checkpoints of a training, and loads the best one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.callback import Callback, TrainingContext
from toolkit.api.run import Checkpoint
from toolkit.api.strategy import Strategy
from toolkit.base.console import say, warn
from toolkit.base.disk import rust_errors_as_os_errors
from toolkit.base.errors import CheckpointError
from toolkit.base.run_folder import CheckpointFolder, RunFolder
from toolkit.checkpoint import contents, store
from toolkit.checkpoint.manifest import FileEntry, verify
from toolkit.checkpoint.state import SavedState
from toolkit.checkpoint.writing import Group, write_groups
from toolkit.distributed.collect import objects_of_all
from toolkit.distributed.collectives import on_every, on_main
from toolkit.distributed.guard import refuse_non_finite
from toolkit.distributed.signals import StopSignal
from toolkit.optim import schedules
from toolkit.tracking.jsonl import mark_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Kept = tuple[Mapping[str, "Tensor"], dict[str, Any]]
"""State of the strategy or of a callback in a checkpoint: tensors, and JSON-able values."""


class Checkpointer:
    """Writes and reads a training's checkpoints.

    Args:
        context: the training.
        stop: the flag that a stop signal sets; its deadline is suspended while the main process writes.
        engine_state: returns the engine's own JSON-able state, by name.
        on_save: called on every rank after a checkpoint has been written.
    """

    def __init__(
        self,
        context: TrainingContext,
        stop: StopSignal,
        engine_state: Callable[[], dict[str, Any]],
        on_save: Callable[[], None],
    ) -> None:
        self._context, self._stop = context, stop
        self._engine_state, self._on_save = engine_state, on_save
        self._saved: tuple[int, bool] | None = None
        self.saved_at: float | None = None
        """Time (`time.monotonic`) of the last checkpoint of this session, or None."""

    @property
    def is_saved(self) -> bool:
        """Whether the newest checkpoint is of this step and records whether training ended with it."""
        state = self._context.state
        return self._saved == (state.step, state.ended)

    def save(self) -> None:
        """Writes a checkpoint of this step, then removes surplus ones. Every rank must call it.

        Raises:
            RunError: on every rank, if the model is not finite or the checkpoint cannot be written.
        """
        context, run = self._context, self._context.run
        root = RunFolder(run.output_dir).checkpoints
        run.strategy.settle(for_checkpoint=True)
        model = run.strategy.own_parameters()
        refuse_non_finite(run.accelerator, model, context.state.step)
        kept = {name: found for name, part in self._parts().items() if (found := part.state()) is not None}
        # A stage of a pipeline may have no tensors of a callback that others have.
        saved = set(chain(*objects_of_all([name for name, (tensors, _) in kept.items() if tensors])))
        groups = [
            contents.model_group(model),
            contents.optimizer_group(*run.strategy.own_optimizer()),
            *(Group(name, tensors) for name, (tensors, _) in kept.items() if name in saved),
        ]
        sharded, written = run.cfg.checkpoint.format == "sharded", dict[str, FileEntry]()
        with self._stop.unhurried(), ExitStack() as transaction:
            new = store.new_checkpoint(root, context.state.step, written)
            folder = on_main(run.accelerator, transaction.enter_context, new)
            written |= write_groups(run.accelerator, folder, groups, sharded)
            on_main(run.accelerator, self._finish, folder, kept, transaction)
        self._saved, self.saved_at = (context.state.step, context.state.ended), time.monotonic()
        self._on_save()

    def restore(self, saved: Checkpoint) -> None:
        """Restores parameters, optimizer, schedule, counters, strategy and callbacks from a checkpoint.

        Raises:
            CheckpointError: if the checkpoint does not match the model or the optimizer.
            DamagedCheckpoint: on every rank, if any rank found a damaged file.
        """
        context, run = self._context, self._context.run
        with run.strategy.loading(context.bare_model, context.optimizer) as (model, optimizer):
            kept = on_every(run.accelerator, self._load, saved, model, optimizer)
        content, state = SavedState.from_json(saved.state), context.state
        state.restore(content.train)
        schedules.seek(context.schedule, state.step - state.skipped_steps)
        if run.accelerator.scaler is not None and content.scaler is not None:
            run.accelerator.scaler.load_state_dict(content.scaler)
        best = state.best_step if run.cfg.checkpoint.load_best_model_at_end else None
        if best not in (None, state.step) and not self._folder(best).is_dir():
            say(f"the best checkpoint (step {best}) is missing; tracking of the best metric restarts")
            state.best_metric, state.best_step = None, None
        for part, (tensors, values) in kept:
            try:
                part.restore(tensors, values)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CheckpointError(
                    f"{saved.path}: the state of {type(part).__name__} cannot be restored ({type(error).__name__}: "
                    f"{error}); use another checkpoint"
                ) from error
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
        """
        context, accelerator = self._context, self._context.run.accelerator
        path = self._folder(context.state.best_step)
        try:
            if not self.is_saved:  # a damaged file is found only after it has replaced the parameters
                on_main(accelerator, _refuse_damaged, path)
            with self._loading() as model:
                best, kept = on_every(accelerator, self._load_best, path, model)
        except CheckpointError as error:
            warn(f"{error}; keeping the model of the last step")
            if self.is_saved:
                last = store.open_checkpoint(self._folder(context.state.step))
                with self._loading() as model:
                    on_every(accelerator, self._load_model, last, model)
            return False
        for part, (tensors, values) in kept:
            if part is not context.run.strategy:
                part.on_best_loaded(best, tensors, values)
        return True

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

    def _finish(self, folder: Path, kept: Mapping[str, Kept], transaction: ExitStack) -> None:
        """Writes what the main process alone knows, ends the transaction, and removes surplus checkpoints."""
        context, run = self._context, self._context.run
        scaler = run.accelerator.scaler
        state = SavedState(
            train=asdict(context.state),
            identity=run.identity,
            callbacks={name: values for name, (_, values) in kept.items()},
            scaler=None if scaler is None else scaler.state_dict(),
            metrics=mark_of(RunFolder(run.output_dir).metrics),
            **self._engine_state(),
        )
        with transaction:
            contents.write_state(folder, state.to_json())
            with rust_errors_as_os_errors():
                run.processor.save_pretrained(str(CheckpointFolder(folder).processor))
        best = context.state.best_step if run.cfg.checkpoint.load_best_model_at_end else None
        root = RunFolder(run.output_dir).checkpoints
        store.prune(root, run.cfg.checkpoint.save_total_limit, () if best is None else {best})

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


def _refuse_damaged(path: Path) -> None:
    """Raises CheckpointError if any byte of a checkpoint differs from its manifest."""
    if problems := verify(path):
        raise CheckpointError(f"the checkpoint {path.absolute()} is damaged ({problems[0]})")

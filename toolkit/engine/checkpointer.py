"""Checkpoints of a training: what goes into one, what a resume takes out of it, and the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from toolkit.api.callback import Callback, TrainingContext
from toolkit.api.run import Checkpoint
from toolkit.api.strategy import Strategy
from toolkit.base.console import say, warn
from toolkit.base.errors import ConfigError
from toolkit.checkpoint import store
from toolkit.distributed.collectives import on_main
from toolkit.distributed.signals import StopSignal
from toolkit.optim import schedules

if TYPE_CHECKING:
    from torch import Tensor

Kept = tuple[dict[str, "Tensor"], dict[str, Any]]
"""What a checkpoint holds of the strategy or of a callback: tensors, and JSON-able values."""


class Checkpointer:
    """Writes and reads a training's checkpoints: nothing else knows what a save and a resume are.

    Args:
        context: the training.
        stop: its deadline is suspended while the main process writes.
        engine_state: returns what the engine itself wants to keep, JSON-able, by name.
        on_save: called on every rank after a checkpoint was written.
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

    @property
    def is_saved(self) -> bool:
        """Whether the newest checkpoint is of this step, and knows whether training has ended with it."""
        state = self._context.state
        return self._saved == (state.step, state.ended)

    def save(self) -> None:
        """Writes a checkpoint of this step, and then removes those that are too many; every rank must call it.

        Raises:
            RunError: on every rank, if it cannot be written.
        """
        context = self._context
        context.run.strategy.settle(for_checkpoint=True)
        with self._stop.unhurried():
            on_main(context.run.accelerator, self._write)
        self._saved = (context.state.step, context.state.ended)
        self._on_save()

    def restore(self, saved: Checkpoint) -> None:
        """Puts parameters, optimizer, schedule, counters, strategy and callbacks back to a checkpoint.

        Raises:
            ConfigError: if the run is to end before it.
            CheckpointError: if it is of another model or optimizer.
        """
        context, run = self._context, self._context.run
        store.load_model_into(saved, context.bare_model)
        store.load_optimizer_into(saved, context.optimizer, context.bare_model)
        state = context.state
        state.restore(saved.state["train"])
        if state.step > context.milestones.total_steps:
            there = f"the checkpoint is already at step {state.step}"
            would = f"this would end at {context.milestones.total_steps}"
            raise ConfigError([f"train.max_steps, train.num_train_epochs: {there}, and {would}"])
        schedules.seek(context.schedule, state.step - state.skipped_steps)
        if run.accelerator.scaler is not None and "scaler" in saved.state:
            run.accelerator.scaler.load_state_dict(saved.state["scaler"])
        best = state.best_step if run.cfg.checkpoint.load_best_model_at_end else None
        if best not in (None, state.step) and not self._folder(best).is_dir():
            say(f"the best checkpoint (step {best}) is missing; tracking of the best metric restarts")
            state.best_metric, state.best_step = None, None
        for part, (tensors, values) in self._kept(saved):
            part.restore(tensors, values)
        self._saved = (state.step, state.ended)

    def load_best(self) -> bool:
        """Replaces the last step's parameters by the best step's, unless they are damaged; says whether it did."""
        context = self._context
        path = self._folder(context.state.best_step)
        if problems := on_main(context.run.accelerator, store.verify, path):
            warn(f"the best checkpoint, {path.name}, is damaged ({problems[0]}); the model is the last step's")
            return False
        best = store.open_checkpoint(path)
        store.load_model_into(best, context.bare_model)
        for part, (tensors, values) in self._kept(best):
            if part is not context.run.strategy:
                part.on_best_loaded(best, tensors, values)
        return True

    def _write(self) -> None:
        context, run = self._context, self._context.run
        root, parts = run.output_dir / "checkpoints", self._parts()
        kept = {name: found for name, part in parts.items() if (found := part.state()) is not None}
        state: dict[str, Any] = {
            "train": asdict(context.state),
            "identity": dict(run.identity),
            "extensions": {name: values for name, (_, values) in kept.items()},
            **self._engine_state(),
        }
        if run.accelerator.scaler is not None:
            state["scaler"] = run.accelerator.scaler.state_dict()

        def extra(temporary: Path) -> None:
            run.processor.save_pretrained(str(temporary / "processor"))
            for name, (tensors, _) in kept.items():
                if tensors:
                    contiguous = {key: value.contiguous() for key, value in tensors.items()}
                    save_file(contiguous, temporary / f"{name}.safetensors")

        store.save(root, context.state.step, context.bare_model, context.optimizer, state, extra)
        best = context.state.best_step if run.cfg.checkpoint.load_best_model_at_end else None
        store.prune(root, run.cfg.checkpoint.save_total_limit, () if best is None else {best})

    def _folder(self, step: int | None) -> Path:
        return self._context.run.output_dir / "checkpoints" / f"step-{step}"

    def _parts(self) -> dict[str, Strategy | Callback]:
        """What has a state of its own, by the name in checkpoints."""
        strategy = self._context.run.strategy
        return {strategy.name: strategy, **self._context.callbacks}

    def _kept(self, saved: Checkpoint) -> Iterator[tuple[Any, Kept]]:
        """What a checkpoint holds of each; what was not there then has nothing to restore."""
        for name, part in self._parts().items():
            file = saved.path / f"{name}.safetensors"
            if name in saved.state.get("extensions", {}):
                yield part, (load_file(file) if file.exists() else {}, saved.state["extensions"][name])

"""A session's checkpoints: what goes into one, and which one is the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from toolkit.api.run import TrainState
from toolkit.api.supports import state_of
from toolkit.base.console import say
from toolkit.base.errors import ConfigError
from toolkit.checkpoint import store as checkpoint
from toolkit.distributed.collectives import on_main
from toolkit.optim import schedules

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.engine.callbacks.extensions import Extension
    from toolkit.engine.session import Session


def folder(session: Session, step: int | None) -> Path:
    """Returns where the checkpoint of a step is, or would be."""
    return session.run.output_dir / "checkpoints" / f"step-{step}"


def write_checkpoint(session: Session) -> None:
    """Writes a checkpoint of the session's step, then removes those that are too many; on the main process."""
    run, root = session.run, session.run.output_dir / "checkpoints"
    state: dict[str, Any] = {
        "train": asdict(session.state),
        "task": state_of(run.task),
        "identity": dict(run.identity),
        **session.engine_state(),
    }
    if run.accelerator.scaler is not None:
        state["scaler"] = run.accelerator.scaler.state_dict()
    kept = {name: extension.state() for name, extension in session.extensions.items()}
    state["extensions"] = {name: values for name, (_, values) in kept.items()}

    def extra(temporary: Path) -> None:
        run.processor.save_pretrained(str(temporary / "processor"))
        for name, (tensors, _) in kept.items():
            if tensors:
                save_file(
                    {key: value.contiguous() for key, value in tensors.items()}, temporary / f"{name}.safetensors"
                )

    checkpoint.save(root, session.state.step, session.bare_model, session.optimizer, state, extra)
    best = session.state.best_step if run.cfg.checkpoint.load_best_model_at_end else None
    checkpoint.prune(root, run.cfg.checkpoint.save_total_limit, () if best is None else {best})


def restore_session(session: Session, saved: checkpoint.Checkpoint) -> None:
    """Puts parameters, optimizer, schedule, counters and extensions back to a checkpoint.

    Raises:
        ConfigError: if the run is to end before it.
    """
    checkpoint.load_model_into(saved, session.bare_model)
    checkpoint.load_optimizer_into(saved, session.optimizer, session.bare_model)
    state = session.state = TrainState(**saved.state["train"])
    if state.step > session.plan.total_steps:
        there = f"the checkpoint is already at step {state.step}"
        would = f"this would end at {session.plan.total_steps}"
        raise ConfigError([f"train.max_steps, train.num_train_epochs: {there}, and {would}"])
    schedules.seek(session.schedule, state.step - state.skipped_steps)
    if session.run.accelerator.scaler is not None and "scaler" in saved.state:
        session.run.accelerator.scaler.load_state_dict(saved.state["scaler"])
    best = state.best_step if session.run.cfg.checkpoint.load_best_model_at_end else None
    if best not in (None, state.step) and not folder(session, best).is_dir():
        say(f"the checkpoint of the best step, {best}, is not here: the best is looked for anew from here on")
        state.best_metric, state.best_step, state.evaluations_since_best = None, None, 0
    for extension, tensors, values in _kept(session, saved):
        extension.restore(tensors, values)


def _kept(
    session: Session, saved: checkpoint.Checkpoint
) -> Iterator[tuple[Extension, dict[str, Tensor], dict[str, Any]]]:
    """What a checkpoint holds of each extension; one that was not there then has nothing to go on with."""
    for name, extension in session.extensions.items():
        file = saved.path / f"{name}.safetensors"
        if name in saved.state.get("extensions", {}):
            yield extension, load_file(file) if file.exists() else {}, saved.state["extensions"][name]


def load_best(session: Session) -> bool:
    """Puts the best step's parameters in place of the last step's, unless they are damaged; says whether it did."""
    path = folder(session, session.state.best_step)
    if problems := on_main(session.run.accelerator, checkpoint.verify, path):
        say(f"warning: the best checkpoint, {path.name}, is damaged ({problems[0]}); the model is the last step's")
        return False
    best = checkpoint.open_checkpoint(path)
    checkpoint.load_model_into(best, session.bare_model)
    for extension, tensors, values in _kept(session, best):
        extension.take_best(best, tensors, values)
    return True

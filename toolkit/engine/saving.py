"""A session's checkpoints: what goes into one, and which one is the best."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.console import say
from toolkit.base.errors import ConfigError
from toolkit.base.run_folder import CheckpointFolder, RunFolder
from toolkit.checkpoint import store as checkpoint
from toolkit.checkpoint.state import SavedState
from toolkit.distributed.collectives import on_every, on_main
from toolkit.optim import schedules

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.engine.callbacks.extensions import Extension
    from toolkit.engine.session import Session


def folder(session: Session, step: int | None) -> Path:
    """Returns where the checkpoint of a step is, or would be."""
    return RunFolder(session.run.output_dir).checkpoint(step).path


def write_checkpoint(session: Session) -> None:
    """Writes a checkpoint of the session's step, then removes those that are too many; on the main process."""
    run, root = session.run, RunFolder(session.run.output_dir).checkpoints
    kept = {name: extension.state() for name, extension in session.extensions.items()}
    scaler = run.accelerator.scaler
    state = SavedState(
        train=session.state,
        identity=run.identity,
        callbacks={name: values for name, (_, values) in kept.items()},
        scaler=None if scaler is None else scaler.state_dict(),
        **session.engine_state(),
    )

    def extra(temporary: Path) -> None:
        run.processor.save_pretrained(str(CheckpointFolder(temporary).processor))
        for name, (tensors, _) in kept.items():
            if tensors:
                checkpoint.write_tensors(CheckpointFolder(temporary).callback(name), tensors)

    checkpoint.save(root, session.state.step, session.bare_model, session.optimizer, state.to_json(), extra)
    best = session.state.best_step if run.cfg.checkpoint.load_best_model_at_end else None
    checkpoint.prune(root, run.cfg.checkpoint.save_total_limit, () if best is None else {best})


def restore_session(session: Session, saved: checkpoint.Checkpoint) -> None:
    """Puts parameters, optimizer, schedule, counters and extensions back to a checkpoint.

    Raises:
        ConfigError: if the run is to end before it.
        CheckpointError: if it is not a checkpoint of this model and optimizer.
        DamagedCheckpoint: on every rank, if one of them found a damaged file.
    """

    def load() -> list[tuple[Extension, dict[str, Tensor], dict[str, Any]]]:
        checkpoint.load_model_into(saved, session.bare_model)
        checkpoint.load_optimizer_into(saved, session.optimizer, session.bare_model)
        return list(_kept(session, saved))

    kept = on_every(session.run.accelerator, load)
    content = SavedState.from_json(saved.state)
    state = session.state = content.train
    if state.step > session.plan.total_steps:
        there = f"the checkpoint is already at step {state.step}"
        would = f"this would end at {session.plan.total_steps}"
        raise ConfigError([f"train.max_steps, train.num_train_epochs: {there}, and {would}"])
    schedules.seek(session.schedule, state.step - state.skipped_steps)
    if session.run.accelerator.scaler is not None and content.scaler is not None:
        session.run.accelerator.scaler.load_state_dict(content.scaler)
    best = state.best_step if session.run.cfg.checkpoint.load_best_model_at_end else None
    if best not in (None, state.step) and not folder(session, best).is_dir():
        say(f"the checkpoint of the best step, {best}, is not here: the best is looked for anew from here on")
        state.best_metric, state.best_step, state.evaluations_since_best = None, None, 0
    for extension, tensors, values in kept:
        extension.restore(tensors, values)


def _kept(
    session: Session, saved: checkpoint.Checkpoint
) -> Iterator[tuple[Extension, dict[str, Tensor], dict[str, Any]]]:
    """What a checkpoint holds of each extension; one that was not there then has nothing to go on with."""
    values = SavedState.from_json(saved.state).callbacks
    for name, extension in session.extensions.items():
        if name in values:
            file = CheckpointFolder(saved.path).callback(name)
            yield extension, checkpoint.load_tensors(saved, file), dict(values[name])


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

"""Which checkpoint a run is resumed from, and what in its output folder must not be mixed with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.files import is_temporary
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.store import NOTHING, latest, open_checkpoint, steps

_NUM_SHOWN = 8


def decide_resume(
    output_dir: Path, resume: str, skip: Mapping[Path, str] = NOTHING
) -> tuple[Checkpoint | None, list[str]]:
    """Decides what a run starts from.

    Args:
        output_dir: the run's folder.
        resume: the setting `checkpoint.resume`.
        skip: folders of checkpoints that turned out to be damaged while they were loaded, and why.

    Returns:
        The checkpoint to resume from, or None to start from the beginning, and messages for the user.

    Raises:
        CheckpointError: when the folder holds a former run that would be mixed with this one, or the checkpoint asked
            for cannot be used.
    """
    if resume not in ("none", "auto"):
        return _from_path(output_dir, Path(resume), skip)
    if resume == "none":
        _refuse_former_run(output_dir)
        return None, []
    files = RunFolder(output_dir)
    if files.model.exists() and not steps(files.checkpoints):
        raise CheckpointError(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds a finished run without checkpoints, which would be "
            "overwritten. Give another output_dir, or delete the folder"
        )
    checkpoint, messages = latest(files.checkpoints, skip)
    if checkpoint is None and (names := _contents(output_dir)):
        messages.append(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds {_listed(names)}, but no valid checkpoint; nothing "
            "could be used, starting from the beginning"
        )
    return checkpoint, messages


def _from_path(output_dir: Path, path: Path, skip: Mapping[Path, str]) -> tuple[Checkpoint, list[str]]:
    """Opens the checkpoint at `path`, or the newest valid one where `path` is a run or its checkpoints folder."""
    messages: list[str] = []
    inside = RunFolder(path).checkpoints
    root = inside if inside.is_dir() else path
    if steps(root):
        checkpoint, messages = latest(root, skip)
        if checkpoint is None:
            raise CheckpointError("\n".join([f"checkpoint.resume: nothing in {root.absolute()} is usable:", *messages]))
        messages.append(f"checkpoint.resume: using the newest valid checkpoint in {path}, {checkpoint.path.name}")
    else:
        checkpoint = open_checkpoint(path, skip)
    own = RunFolder(output_dir).checkpoints.resolve()
    if checkpoint.path.resolve().parent != own:
        if not skip:  # else what is in the folder is this run's, from before it found the damage
            _refuse_former_run(output_dir)
    elif later := [folder.name for step, folder in steps(own) if step > checkpoint.step]:
        messages.append(f"going back to step {checkpoint.step}: the next save will remove {', '.join(later)}")
    return checkpoint, messages


def _refuse_former_run(output_dir: Path) -> None:
    names = _contents(output_dir)
    if names:
        raise CheckpointError(
            f"the output folder {output_dir.absolute()} is not empty, it holds {_listed(names)}. Give another "
            "output_dir, resume the run that is there (checkpoint.resume=auto), or delete the folder"
        )


def _contents(output_dir: Path) -> list[str]:
    files = RunFolder(output_dir)
    found = {path for path in output_dir.glob("*") if path != files.lock and not is_temporary(path)}
    before_training = {files.config, files.facts, files.diff, files.processor, files.base, files.bad_rows}
    # A run that failed before its first step left nothing to lose.
    return [] if found <= before_training else sorted(path.name for path in found)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more

"""Selects the checkpoint to resume from, and rejects output folders that hold another run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.files import is_temporary, read_json
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.store import NOTHING, latest, open_checkpoint, steps

_NUM_SHOWN = 8


def decide_resume(
    output_dir: Path, resume: str, skip: Mapping[Path, str] = NOTHING, again: bool = False
) -> tuple[Checkpoint | None, list[str]]:
    """Selects the checkpoint that a run starts from (None: from the beginning), with messages for the user.

    `resume` is the setting `checkpoint.resume`; `skip` and `again` as for `toolkit.checkpoint.output_folder.claim`.
    Raises CheckpointError if the folder holds another run, or there are checkpoints but none can be used.
    """
    if again and (resume == "none" or steps(RunFolder(output_dir).checkpoints)):
        resume = "auto"
    if resume not in ("none", "auto"):
        return _from_path(output_dir, Path(resume), skip, again)
    if resume == "none":
        _reject_former_run(output_dir)
        return None, []
    files = RunFolder(output_dir)
    if not steps(files.checkpoints) and (found := _result_without_checkpoints(files)):
        raise CheckpointError(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds {found}, which would be overwritten. Set another "
            "output_dir, or delete the folder"
        )
    checkpoint, messages = latest(files.checkpoints, skip)
    if checkpoint is None and messages:
        raise CheckpointError(
            "\n".join(
                [
                    f"checkpoint.resume=auto: {files.checkpoints.absolute()} has checkpoints, but none can be used:",
                    *(f"  - {message}" for message in messages),
                    "Nothing was changed. Restore one of them, use the version of the toolkit that wrote it, or set "
                    "another output_dir to start from the beginning",
                ]
            )
        )
    if checkpoint is None and (names := _contents(output_dir)):
        messages.append(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds {_listed(names)}, but no checkpoint; "
            "starting from the beginning"
        )
    return checkpoint, messages


def newest(path: Path, skip: Mapping[Path, str] = NOTHING) -> tuple[Checkpoint, list[str]]:
    """Opens the checkpoint at `path`, or the newest valid one if `path` is a run or its checkpoints folder.

    Returns the checkpoint, and messages for the user. Raises CheckpointError if there is none that can be used.
    """
    inside = RunFolder(path).checkpoints
    root = inside if inside.is_dir() else path
    if not steps(root):
        return open_checkpoint(path, skip), []
    checkpoint, messages = latest(root, skip)
    if checkpoint is None:
        raise CheckpointError("\n".join([f"no usable checkpoint in {root.absolute()}:", *messages]))
    return checkpoint, [*messages, f"using the newest valid checkpoint in {path}, {checkpoint.path.name}"]


def _result_without_checkpoints(files: RunFolder) -> str:
    """Returns which result of a run a folder holds; empty if the run did not come to noting that its model is whole."""
    finished = "a finished run without checkpoints"
    if not files.model.exists():
        return ""
    try:
        facts = read_json(files.facts)
        if "result" in facts:
            return finished
        is_whole = any(name.startswith(f"{files.model.name}/") for name in facts.get("files", ()))
    except (OSError, ValueError, TypeError, AttributeError):  # of another tool, or damaged: it may be worth keeping
        return finished
    advice = "a run without checkpoints whose model is complete (`toolkit evaluate` and `toolkit predict` use it)"
    return advice if is_whole else ""


def _from_path(output_dir: Path, path: Path, skip: Mapping[Path, str], again: bool) -> tuple[Checkpoint, list[str]]:
    """Opens the checkpoint that `checkpoint.resume` names."""
    checkpoint, messages = newest(path, skip)
    own = RunFolder(output_dir).checkpoints.resolve()
    if checkpoint.path.resolve().parent != own:
        if not skip and not again:  # otherwise the folder's content is from this run
            _reject_former_run(output_dir)
    elif later := [folder.name for step, folder in steps(own) if step > checkpoint.step]:
        messages.append(f"going back to step {checkpoint.step}: the next save will remove {', '.join(later)}")
    return checkpoint, messages


def _reject_former_run(output_dir: Path) -> None:
    if names := _contents(output_dir):
        raise CheckpointError(
            f"the output folder {output_dir.absolute()} is not empty, it holds {_listed(names)}. Set another "
            "output_dir, resume the existing run (checkpoint.resume=auto), or delete the folder"
        )


def _contents(output_dir: Path) -> list[str]:
    files = RunFolder(output_dir)
    locks = (files.lock, files.lock_owner, files.lock_removal)
    found = {path for path in output_dir.glob("*") if path not in locks and not is_temporary(path)}
    before_training = {files.config, files.facts, files.diff, files.processor, files.base, files.bad_rows, files.stacks}
    # A run that failed before its first step left nothing worth keeping.
    return [] if found <= before_training else sorted(path.name for path in found)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more

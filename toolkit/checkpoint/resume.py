"""The output folder of a run: can it be written, is anybody else in it, and does a run go on from what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.files import is_temporary
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.store import latest, open_checkpoint, steps

FREE = (
    "output_dir",
    "engine",
    "trainer.callbacks",
    "train.max_steps",
    "train.num_train_epochs",
    "train.max_time",
    "train.dataloader_*",
    "train.ddp_timeout",
    "eval.*",
    "checkpoint.*",
    "tracking.*",
    # Paths may change as long as the content, which the training fingerprint stands for, is the same.
    "data.train_file",
    "data.validation_file",
    "data.test_file",
    "data.fingerprint.validation",
    "data.fingerprint.test",
    "data.preprocessing_num_workers",
    "data.max_eval_samples",
    "versions.*",
)
"""Settings (`*` stands for anything) that may change when a run goes on; a change of any other makes another run."""

_NUM_SHOWN = 8


def decide_resume(output_dir: Path, resume: str) -> tuple[Checkpoint | None, list[str]]:
    """Decides what a run starts from; `resume` is the setting `checkpoint.resume`.

    Returns:
        The checkpoint to go on from, or None to start anew, and messages for the user.

    Raises:
        CheckpointError: when the folder holds a former run that would be mixed with this one, or the checkpoint asked
            for cannot be used.
    """
    if resume not in ("none", "auto"):
        return _from_path(output_dir, Path(resume))
    if resume == "none":
        _refuse_former_run(output_dir)
        return None, []
    files = RunFolder(output_dir)
    if files.model.exists() and not steps(files.checkpoints):
        raise CheckpointError(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds a finished run without checkpoints, which would be "
            "overwritten. Give another output_dir, or delete the folder"
        )
    checkpoint, messages = latest(files.checkpoints)
    if checkpoint is None and (names := _contents(output_dir)):
        messages.append(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds {_listed(names)}, but no valid checkpoint; nothing "
            "could be used, starting anew"
        )
    return checkpoint, messages


def changed_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compares the settings a run was started with to those it should go on with.

    Args:
        saved: values by dotted key, as read from JSON: the resolved configuration, `num_processes`,
            `data.fingerprint.<split>`, `versions.<package>`.
        current: the same of now.

    Returns:
        One message for each that differs and is not `FREE`, sorted by key.
    """
    now = json.loads(json.dumps(dict(current)))  # tuples become lists, as they did in what was saved
    return [
        f"{key}: the run was started {_with(saved, key)}, now {_shown(now, key)}"
        for key in sorted({*saved, *now})
        if not any(fnmatchcase(key, pattern) for pattern in FREE)
        and (key in saved, saved.get(key)) != (key in now, now.get(key))
    ]


def refuse_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raises CheckpointError, naming them all, when `changed_settings` finds any."""
    changes = changed_settings(saved, current)
    if changes:
        title = "the run cannot go on with other settings, its numbers would not be those of one run:"
        advice = "Give these their former values, or start a new run in another output_dir."
        raise CheckpointError("\n".join([title, *(f"  - {change}" for change in changes), advice]))


def _from_path(output_dir: Path, path: Path) -> tuple[Checkpoint, list[str]]:
    """Opens the checkpoint at `path`, or the newest valid one where `path` is a run or its checkpoints folder."""
    messages: list[str] = []
    inside = RunFolder(path).checkpoints
    root = inside if inside.is_dir() else path
    if steps(root):
        checkpoint, messages = latest(root)
        if checkpoint is None:
            raise CheckpointError("\n".join([f"checkpoint.resume: nothing in {root.absolute()} is usable:", *messages]))
        messages.append(f"checkpoint.resume: using the newest valid checkpoint in {path}, {checkpoint.path.name}")
    else:
        checkpoint = open_checkpoint(path)
    own = RunFolder(output_dir).checkpoints.resolve()
    if checkpoint.path.resolve().parent != own:
        _refuse_former_run(output_dir)
    elif later := [folder.name for step, folder in steps(own) if step > checkpoint.step]:
        messages.append(f"going back to step {checkpoint.step}: the next save will remove {', '.join(later)}")
    return checkpoint, messages


def _refuse_former_run(output_dir: Path) -> None:
    names = _contents(output_dir)
    if names:
        raise CheckpointError(
            f"the output folder {output_dir.absolute()} is not empty, it holds {_listed(names)}. Give another "
            "output_dir, go on with the run that is there (checkpoint.resume=auto), or delete the folder"
        )


def _contents(output_dir: Path) -> list[str]:
    files = RunFolder(output_dir)
    found = {path for path in output_dir.glob("*") if path != files.lock and not is_temporary(path)}
    before_training = {files.config, files.facts, files.processor, files.base, files.bad_rows}
    # A run that failed before its first step left nothing to lose.
    return [] if found <= before_training else sorted(path.name for path in found)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more


def _with(settings: Mapping[str, Any], key: str) -> str:
    return f"with {_shown(settings, key)}" if key in settings else "without it"


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key], ensure_ascii=False) if key in settings else "it is not there"

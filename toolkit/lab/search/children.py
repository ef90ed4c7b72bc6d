"""Copies the run of a member of a population, at its newest checkpoint, and changes settings in the copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.base.errors import RunError
from toolkit.base.files import written_folder
from toolkit.base.run_folder import CheckpointFolder, RunFolder
from toolkit.checkpoint.manifest import write_manifest
from toolkit.checkpoint.store import latest
from toolkit.config.keys import written
from toolkit.config.source import Settings, Source


def replace_run(child: Path, parent: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """Replaces the run of a member by that of another one at its newest checkpoint, with other settings.

    Everything in the new checkpoint is the parent's to the bit, except these settings in its `state.json`.

    Args:
        child: output folder of the run that is replaced.
        parent: output folder of the run that is copied.
        before: the parent's settings of the space.
        after: the child's.

    Returns:
        The step.

    Raises:
        RunError: if the parent has no checkpoint.
    """
    found, messages = latest(RunFolder(parent).checkpoints)
    if found is None:
        raise RunError(f"{parent} has no checkpoint to copy: {'; '.join(messages) or 'its folder was changed'}")
    child.parent.mkdir(parents=True, exist_ok=True)
    with written_folder(child) as folder:
        copy_checkpoint(found.path, RunFolder(folder).checkpoints / found.path.name)
        if RunFolder(parent).metrics.exists():
            shutil.copyfile(RunFolder(parent).metrics, RunFolder(folder).metrics)
        explore_checkpoint(RunFolder(folder).checkpoints / found.path.name, found.step, before, after)
    return found.step


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint: every file is equal to the bit."""
    shutil.copytree(source, target)


def explore_checkpoint(path: Path, step: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Changes settings of the run that a checkpoint belongs to, so that it can go on with them.

    Args:
        path: the checkpoint, of which no run knows yet.
        step: its step.
        before: values by dotted key.
        after: the new values.
    """
    file = CheckpointFolder(path).state
    content = json.loads(file.read_text(encoding="utf-8"))
    for override in written({key: value for key, value in after.items() if value != before.get(key)}):
        key, _, text = override.partition("=")
        content["identity"][key] = Settings(Source("override", override)).parse(text, tuple(key.split(".")))[1]
    file.write_text(json.dumps(content), encoding="utf-8")
    CheckpointFolder(path).manifest.unlink()  # it lists every file but itself
    write_manifest(path, step, {})

"""Recipes that this user has trained with, and runs that this user has started: only what these name is executed.

A run's folder may come from somebody else, so what it says about itself proves nothing. The sha256 of each recipe that
is trained with, and of what a run may execute, are therefore kept outside of it, in the user's own state folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError
from toolkit.base.files import file_sha256, sha256
from toolkit.base.package import shipped_root
from toolkit.base.run_folder import RunFolder

EXECUTED = ("recipe", "working_directory", "num_processes", "hardware")
"""What a run's `run.json` says about how to repeat it."""


def trust(recipe: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Remembers a recipe that the user trains with; does nothing if the state folder cannot be written."""
    with suppress(OSError, RuntimeError):  # also an account without a home
        _remember(_notes("recipes", environ) / file_sha256(recipe))


def trust_run(run: Path, facts: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Remembers what a run that the user starts may execute.

    That is its settings, its recipe and its working directory, on how many processes and threads; `facts` is the
    content of its `run.json`.
    """
    with suppress(OSError, RuntimeError):
        _remember(_note_of(run, facts, environ))


def is_own_run(run: Path, facts: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has started this run, with what its folder names; see `trust_run`."""
    with suppress(OSError, RuntimeError):
        return _note_of(run, facts, environ).exists()
    return False


def shipped_copy(recipe: Path) -> Path | None:
    """Returns the toolkit's own file with the content of a recipe, or None."""
    shipped = shipped_root() / "recipes" / recipe.name
    return shipped if shipped.is_file() and file_sha256(shipped) == file_sha256(recipe) else None


def require_trusted(recipe: Path, run: str | Path, how: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises InputError unless a run's recipe is the toolkit's, or the user has trained with it in its present form.

    `how` tells in the message how the user names a recipe.
    """
    is_known = False
    with suppress(RuntimeError):
        is_known = (_notes("recipes", environ) / file_sha256(recipe)).exists()
    if not is_known and shipped_copy(recipe) is None:
        raise InputError(
            f"{run}: this account has not run its recipe {recipe} in its present form on this machine; if you trust "
            f"it, name it {how}"
        )


def _notes(kind: str, environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "finetune-toolkit" / kind


def _note_of(run: Path, facts: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    named = [file_sha256(RunFolder(run).config), *(facts.get(name) for name in EXECUTED)]
    return _notes("runs", environ) / sha256(json.dumps(named))


def _remember(note: Path) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    note.touch()

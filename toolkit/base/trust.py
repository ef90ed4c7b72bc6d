"""Recipes that this user has trained with: only these are run because a run's folder names them.

A run's folder may come from somebody else, so what it says about its recipe proves nothing. The sha256 of each recipe
that is trained with is therefore kept outside of it, in the user's own state folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.base.shipped import shipped_root


def trust(recipe: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Remembers a recipe that the user trains with; does nothing if the state folder cannot be written."""
    with suppress(OSError, RuntimeError):  # also an account without a home
        note = _notes(environ) / _sha256(recipe)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def refuse_unknown(recipe: Path, run: str | Path, how: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuses a recipe that is not one of the toolkit's, and with which the user has not trained as it is now.

    Args:
        recipe: the recipe that a run names.
        run: the run's folder.
        how: how the user names a recipe.
        environ: environment variables.

    Raises:
        InputError: if it is neither.
    """
    shipped = shipped_root() / "recipes" / recipe.name
    digest, is_known = _sha256(recipe), False
    with suppress(RuntimeError):
        is_known = (_notes(environ) / digest).exists()
    if not is_known and not (shipped.is_file() and _sha256(shipped) == digest):
        raise InputError(
            f"{run}: nobody has trained with its recipe {recipe}, as it is now, under this account on this machine; "
            f"if you trust it, name it {how}"
        )


def _notes(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "finetune-toolkit" / "recipes"


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

"""What this package brings along: recipes, configurations and sample data, and its objects by name.

In the repository they are folders beside the package; in an installed wheel they are inside it, in `toolkit/shipped`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from toolkit.base.files import kind_of, working_folder

FOLDERS = ("recipes", "accelerate_configs")
"""The shipped folders. A relative path to a file in one of them works from any directory."""


def shipped_root() -> Path:
    """Returns the folder that contains `FOLDERS`."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "shipped"
    return installed if installed.is_dir() else package.parent


def find_shipped(path: str | Path) -> Path | None:
    """Returns the shipped file or folder of a relative path, for instance `recipes/qa.py`; None if there is none.

    The result is relative if it is below the current directory, so that messages and commands stay short.
    """
    name = Path(path)
    found = shipped_root() / name
    if name.is_absolute() or name.parts[:1] not in [(folder,) for folder in FOLDERS] or not kind_of(found):
        return None
    return shortest(found)


def is_shipped(path: str | Path) -> bool:
    """Whether a file is one of the shipped ones."""
    file = Path(path).resolve()
    return any(file.is_relative_to(shipped_root() / folder) for folder in FOLDERS)


def shortest(path: Path) -> Path:
    """Returns a path relative to the current directory if it is below it."""
    here = working_folder()
    return path.relative_to(here) if path.is_relative_to(here) else path


def present(path: str | Path) -> Path:
    """Returns the path if it exists, else the shipped file of this path, else the path."""
    if kind_of(Path(path)):
        return Path(path)
    return find_shipped(path) or Path(path)


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Gives a module, class or object another attribute inside the block; an inherited one is inherited again."""
    former, is_own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, former)
        else:
            delattr(owner, name)


def import_object(name: str) -> Any:
    """Returns a class, function or constant by its dotted name, for instance `torch.optim.AdamW`."""
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ImportError(f"expected package.module.Name, received {name!r}")
    parent = import_module(module)
    try:
        return getattr(parent, attribute)
    except AttributeError:
        return import_module(name)  # a module, or an error that says which one is missing

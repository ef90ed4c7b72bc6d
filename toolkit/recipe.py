"""Recipes by their path: the toolkit never imports them by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from toolkit.errors import InputError
from toolkit.task import Task


def load_task_type(path: str | Path) -> type[Task]:
    """Loads a recipe file and returns its `TASK`.

    Raises:
        InputError: if there is no such file, or it is not a recipe.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such recipe (tried {file.absolute()}); recipes are files such as recipes/qa.py")
    name = f"toolkit_recipe_{file.stem}"  # a recipe may be called like a library
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file; recipes are files such as recipes/qa.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and data loader workers look their module up by name
    spec.loader.exec_module(module)
    if not hasattr(module, "TASK"):
        raise InputError(f"{path}: not a recipe, it has no TASK")
    return module.TASK

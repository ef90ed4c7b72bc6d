"""Recipes by their path, and their settings, checked: the toolkit never imports a recipe by name."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.checks.rules import RULES
from toolkit.config import Loaded, load_config


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


def load_settings(
    task_type: type[Task],
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    check_files: bool = True,
) -> Loaded:
    """Reads and checks the settings of a recipe; arguments and errors are those of `toolkit.config.load_config`."""
    return load_config(
        task_type.Options, file, overrides, environ, columns=task_type.columns, check_files=check_files, rules=RULES
    )

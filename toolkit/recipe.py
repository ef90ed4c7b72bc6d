"""Loads recipes by path and validates their settings; the toolkit never imports a recipe by name."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.checks.check import Findings
from toolkit.checks.rules import RULES
from toolkit.config import Draft, Loaded, read_config


def load_task_type(path: str | Path) -> type[Task]:
    """Loads a recipe file and returns its `TASK`.

    Raises:
        InputError: if the file does not exist, cannot be imported, or is not a recipe.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such recipe (tried {file.absolute()}); recipes are files such as recipes/qa.py")
    name = f"toolkit_recipe_{file.stem}"  # a recipe may have the name of a library
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file; recipes are files such as recipes/qa.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and data loader workers look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # importing a file can end in anything
        del sys.modules[name]
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        raise InputError(f"{path}: cannot be imported: {type(error).__name__}: {error} ({where})") from error
    if not hasattr(module, "TASK"):
        raise InputError(f"{path}: not a recipe, it has no TASK")
    return module.TASK


def load_settings(
    task_type: type[Task],
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    check_files: bool = True,
    starts_run: bool = False,
) -> Loaded:
    """Reads and validates the settings of a recipe.

    Valid settings are checked against libraries, machine, model and data later, when the run starts, or by `validate`.

    Args:
        task_type: the recipe's task.
        file: a YAML 1.2 file in UTF-8, or its sections as a dictionary.
        overrides: `section.key=value` strings; later ones win.
        environ: environment variables with the launcher's settings.
        check_files: whether the files and folders in the settings must exist; not required for a finished run.
        starts_run: whether a run starts with these settings in their `output_dir`.

    Returns:
        The settings and where each was set.

    Raises:
        ConfigError: if any setting is invalid; also lists every other problem that can be found before loading weights.
    """
    draft = _draft(task_type, file, overrides, environ, check_files)
    if draft.problems and check_files:
        _examine(draft, task_type, folder=starts_run).refuse()
    return draft.loaded()


def validate(
    task_type: type[Task],
    file: str | Path,
    overrides: Sequence[str] = (),
    elsewhere: bool = False,
    first_rows: bool = True,
) -> Findings:
    """Runs every check that a run performs before it loads weights.

    Args:
        task_type: the recipe's task.
        file: a YAML 1.2 file in UTF-8, or its sections as a dictionary.
        overrides: `section.key=value` strings; later ones win.
        elsewhere: skip checks that depend on this machine (launcher, files, cache, GPUs, libraries), because the
            training will run on another one.
        first_rows: whether to check the first rows of the data files also if no other problem is found.

    Returns:
        The problems found, and what could not be checked.

    Raises:
        ConfigError: if the file cannot be read.
    """
    draft = _draft(task_type, file, overrides, {} if elsewhere else os.environ, not elsewhere)
    return _examine(draft, task_type, elsewhere, first_rows=first_rows or bool(draft.problems))


def _draft(
    task_type: type[Task],
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    environ: Mapping[str, str],
    check_files: bool,
) -> Draft:
    return read_config(task_type.Options, file, overrides, environ, task_type.columns, check_files, RULES)


def _examine(
    draft: Draft, task_type: type[Task], elsewhere: bool = False, folder: bool = True, first_rows: bool = True
) -> Findings:
    from toolkit.base.console import quiet_libraries
    from toolkit.checks.run import examine

    with quiet_libraries():
        found = examine(draft.config, task_type, draft.faulty, elsewhere, folder, first_rows)
    return Findings((*draft.problems, *map(draft.located, found.problems)), found.unchecked)

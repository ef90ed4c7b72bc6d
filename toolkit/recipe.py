"""Finds recipes by name or path, loads them and validates their settings; the toolkit never imports a recipe."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.base.package import present, shipped_root, shortest
from toolkit.checks.check import Case, Findings, Told, ask
from toolkit.checks.settings import SETTINGS
from toolkit.config import Draft, Loaded, read_config
from toolkit.config.messages import did_you_mean, join

FORMER = {
    "toolkit.api.supports": "toolkit.api.task",
    "toolkit.api.task": "toolkit.api.batch",
    "toolkit.config.column": "toolkit.config.fields",
    "toolkit.config.rule": "toolkit.config.problems",
    "toolkit.metrics.answers": "toolkit.metrics.squad",
    "toolkit.metrics.quality": "toolkit.metrics.score",
    "toolkit.tasks.heads.labels": "toolkit.tasks.labels",
    "toolkit.tasks.label_names": "toolkit.tasks.labels",
    "toolkit.tasks.values": "toolkit.tasks.records",
    "toolkit.tasks.windows": "toolkit.tasks.spans",
}
"""Modules that recipes imported before tasks had a base class, and where their names are now."""


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with the toolkit."""
    return sorted(file.stem for file in (shipped_root() / "recipes").glob("*.py"))


def recipe_file(recipe: str | Path) -> Path:
    """Returns the file of a recipe, given by its name or path.

    A name is that of a shipped recipe, `reviews`; a path to a shipped recipe, `recipes/reviews.py`, works from any
    directory.

    Raises:
        InputError: if there is no such recipe; lists the names.
    """
    names = recipe_names()
    if str(recipe) in names:
        return shortest(shipped_root() / "recipes" / f"{recipe}.py")
    file = present(recipe)
    if file.is_file():
        return file
    raise InputError(
        f"{recipe}: no such recipe{did_you_mean(file.stem, names)}; the recipes are {join(names, 'and')}, or give the "
        f"path of your own (tried {Path(recipe).absolute()})"
    )


def config_file(recipe: str | Path, config: str | Path) -> Path:
    """Returns the file of a recipe's configuration, given by its path or name.

    A path that exists wins; a name is that of a file in `configs/<recipe>/` beside the recipe, `smoke`.

    Raises:
        InputError: if the recipe does not exist, or `config` is a name that is not in that folder.
    """
    if _is_path(config):
        return present(config)
    file = recipe_file(recipe)
    folder = file.parent / "configs" / file.stem
    return _named(str(config), folder, "--config", "a configuration of this recipe", file.stem)


def launcher_file(config: str | Path) -> Path:
    """Returns a configuration file of `accelerate launch`, given by its path or name.

    A path that exists wins; a name is that of a file in the shipped folder `accelerate_configs/`, `ddp`.

    Raises:
        InputError: if `config` is a name that is not in that folder.
    """
    if _is_path(config):
        return present(config)
    folder = shipped_root() / "accelerate_configs"
    return _named(str(config), folder, "--launch", "a configuration of accelerate launch", folder.name)


def _is_path(config: str | Path) -> bool:
    """Whether this is a path: it exists, here or as a shipped file, or has an ending or a folder, unlike a name."""
    path = Path(config)
    return present(path).exists() or bool(path.suffix) or len(path.parts) > 1


def _named(name: str, folder: Path, option: str, what: str, where: str) -> Path:
    """Returns the YAML with a name in a folder; raises InputError with those that are in the folder `where`."""
    if (file := folder / f"{name}.yaml").is_file():
        return shortest(file)
    names = sorted(each.stem for each in folder.glob("*.yaml"))
    listed = f"; {where} has {join(names, 'and')}" if names else ""
    raise InputError(
        f"{option}: received {name!r}, which is neither a file (tried {Path(name).absolute()}) nor the name of {what}"
        f"{did_you_mean(name, names)}{listed}"
    )


def load_task_type(recipe: str | Path) -> type[Task]:
    """Loads a recipe, given by its name or path, and returns its `TASK`.

    Raises InputError if there is no such recipe, it cannot be imported, or is not a recipe.
    """
    path = file = recipe_file(recipe)
    name = f"toolkit_recipe_{file.stem}"  # a recipe may have the name of a library
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file; recipes are files such as recipes/qa.py")
    module = importlib.util.module_from_spec(spec)
    for folder in () if sys.flags.safe_path else (file.resolve().parent, Path.cwd()):
        if str(folder) not in sys.path:  # as Python itself would do for a script; here others may have started it
            sys.path.append(str(folder))
    sys.modules[name] = module  # dataclasses and data loader workers look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # importing a file can end in anything
        del sys.modules[name]
        if isinstance(error, ImportError) and (old := _former_names(file)):
            raise InputError(_outdated(path, old)) from None
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        raise InputError(f"{path}: cannot be imported: {type(error).__name__}: {error} ({where})") from error
    if not hasattr(module, "TASK"):
        raise InputError(f"{path}: not a recipe, it has no TASK")
    found = module.TASK
    if not (isinstance(found, type) and issubclass(found, Task)):
        if old := _former_names(file):
            raise InputError(_outdated(path, old))
        raise InputError(f"{path}: TASK must be a class that derives from toolkit.api.task.Task, received {found!r}")
    attributes = [name for name in ("Options", "columns") if not hasattr(found, name)]
    if missing := [*attributes, *sorted(found.__abstractmethods__)]:
        raise InputError(f"{path}: {found.__name__} lacks {join(missing, 'and')}; see toolkit.api.task.Task")
    return found


def _former_names(file: Path) -> list[str]:
    """Returns what a recipe must change that was written before tasks had a base class, by line."""
    tree = ast.parse(file.read_bytes())
    tasks = {node.value.id for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
             and [each.id for each in node.targets if isinstance(each, ast.Name)] == ["TASK"]}  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in FORMER:
            stay = ("Task", "limits_of") if node.module == "toolkit.api.task" else ()
            if names := ", ".join(each.name for each in node.names if each.name not in stay):
                of_protocols = node.module == "toolkit.api.supports"
                where = "members of toolkit.api.task.Task" if of_protocols else f"in {FORMER[node.module]}"
                found.append((node.lineno, f"from {node.module} import {names}: now {where}"))
        elif isinstance(node, ast.ClassDef) and node.name in tasks and not node.bases:
            found.append((node.lineno, f"class {node.name}: now class {node.name}(Task), from toolkit.api.task"))
    return [f"line {line}: {text}" for line, text in sorted(found)]


def _outdated(path: Path, changes: Sequence[str]) -> str:
    return "\n  - ".join([f"{path}: written for an earlier version of the toolkit; change", *changes])


def load_settings(
    task_type: type[Task],
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    check_files: bool = True,
    starts_run: bool = False,
    told: Told | None = None,
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
        told: prints problems as soon as they are found; None prints nothing.

    Returns:
        The settings and where each was set.

    Raises:
        ConfigError: if any setting is invalid; also lists every other problem that can be found before loading weights.
    """
    draft, case, found = _settings(task_type, file, overrides, environ, check_files, told)
    if found.problems and check_files:
        found += _examine(case, folder=starts_run, told=told)
    found.raise_problems(told)
    return draft.loaded()


def validate(
    task_type: type[Task],
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    elsewhere: bool = False,
    first_rows: bool = True,
    told: Told | None = None,
) -> Findings:
    """Runs every check that a run performs before it loads weights.

    Args:
        task_type: the recipe's task.
        file: a YAML 1.2 file in UTF-8, or its sections as a dictionary.
        overrides: `section.key=value` strings; later ones win.
        elsewhere: skip checks that depend on this machine (launcher, files, cache, GPUs, libraries), because the
            training will run on another one.
        first_rows: whether to check the first rows of the data files also if no other problem is found.
        told: prints problems as soon as they are found if settings are wrong by themselves; None prints nothing.

    Returns:
        The problems found, and what could not be checked.

    Raises:
        ConfigError: if the file cannot be read.
    """
    _, case, found = _settings(task_type, file, overrides, {} if elsewhere else os.environ, not elsewhere, told)
    wrong = bool(found.problems)
    return found + _examine(case, elsewhere, first_rows=first_rows or wrong, told=told if wrong else None)


def _settings(
    task_type: type[Task],
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    environ: Mapping[str, str],
    check_files: bool,
    told: Told | None,
) -> tuple[Draft, Case, Findings]:
    """Returns the settings, the run to check, and what is wrong with the settings by themselves."""
    draft = read_config(task_type.Options, file, overrides, environ, task_type.columns, check_files)
    case = Case(draft.config, task_type, environ, faulty=draft.faulty, place=draft.located)
    found = Findings(draft.problems) + ask(SETTINGS, case, ["settings", "files"] if check_files else ["settings"])
    if told is not None:
        told(found.problems)
    return draft, case, found


def _examine(case: Case, elsewhere: bool = False, **options: Any) -> Findings:
    from toolkit.base.console import quiet_libraries
    from toolkit.checks.run import examine

    with quiet_libraries():
        return examine(case, elsewhere, **options)

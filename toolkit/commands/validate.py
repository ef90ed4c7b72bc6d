"""Check settings and rows: `toolkit validate RECIPE --config FILE [section.key=value ...]`.

`--settings-only` does not read the data files.
"""

from __future__ import annotations

import argparse

from toolkit.api.task import Task
from toolkit.commands import _recipe_config
from toolkit.config.sections import Config
from toolkit.recipe import load_settings, load_task_type, validate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, `--settings-only` and `--elsewhere`."""
    _recipe_config.add_recipe(parser)
    parser.add_argument(
        "--settings-only", action="store_true", help="do not read the data files, except their first rows"
    )
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="the run will be on another machine: skip checks of this one (files, cache, GPUs, libraries)",
    )


def work(arguments: argparse.Namespace) -> None:
    """Runs every check that a run performs before it loads weights, and lists what could not be checked.

    Raises:
        ConfigError: if a setting is invalid; lists all problems.
        DataError: if rows cannot be used; lists them.
    """
    _recipe_config.find(arguments)
    task_type = load_task_type(arguments.recipe)
    all_rows = not (arguments.settings_only or arguments.elsewhere)
    findings = validate(task_type, arguments.config, arguments.overrides, arguments.elsewhere, first_rows=not all_rows)
    findings.refuse()
    print(f"{arguments.config}: all settings are valid")
    for what in findings.unchecked:
        print(f"  not checked: {what}")
    if arguments.settings_only:
        print("  not checked: all rows of the data; a run checks them when it starts")
    if all_rows:
        cfg = load_settings(task_type, arguments.config, arguments.overrides).config
        _check_rows(cfg, task_type(cfg))


def _check_rows(cfg: Config, task: Task) -> None:
    """Reads and checks all rows, and says what was found.

    Raises:
        DataError: if rows cannot be used, and lists them, or if there is no room for the copies of `data.stage_to`.
    """
    import datasets

    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.errors import DataError
    from toolkit.data.loading import check_rows
    from toolkit.data.staging import stage_problem

    if cfg.data.dataset_name is not None and not datasets.config.HF_HUB_OFFLINE:
        return  # nothing is downloaded here, which the checks have said
    with quiet_libraries():
        if cfg.data.stage_to is not None and (problem := stage_problem(cfg.data, task)):
            raise DataError(problem)
        rows = check_rows(cfg, task)
    counts = ", ".join(f"{len(part):,} {name}" for name, part in rows.splits.items())
    say(f"the rows were read: {counts}")
    rows.findings.tell()

"""Check settings: `toolkit validate RECIPE --config FILE [--elsewhere] [section.key=value ...]`."""

from __future__ import annotations

import argparse

from toolkit.commands import _recipe_config
from toolkit.recipe import load_task_type, validate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML and `--elsewhere`."""
    _recipe_config.add_arguments(parser)
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="the run will be on another machine: skip checks of this one (files, cache, GPUs, libraries)",
    )


def work(arguments: argparse.Namespace) -> None:
    """Runs every check that a run performs before it loads weights, and lists what could not be checked.

    Raises:
        ConfigError: if a setting is invalid; lists all problems.
    """
    _recipe_config.find(arguments)
    task_type = load_task_type(arguments.recipe)
    findings = validate(task_type, arguments.config, arguments.overrides, arguments.elsewhere)
    findings.refuse()
    print(f"{arguments.config}: all settings are valid")
    for what in findings.unchecked:
        print(f"  not checked: {what}")

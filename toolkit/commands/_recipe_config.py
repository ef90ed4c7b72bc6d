"""What the commands about a recipe and its YAML share: their arguments, and loading both."""

from __future__ import annotations

import argparse

from toolkit.api.task import Task
from toolkit.config import Loaded
from toolkit.recipe import load_settings, load_task_type


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML and overrides."""
    parser.add_argument("recipe", help="recipe file, for instance recipes/qa.py")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings to change")
    parser.add_argument("--config", required=True, metavar="FILE", help="the run's YAML")


def load(arguments: argparse.Namespace) -> tuple[type[Task], Loaded]:
    """Loads what `add_arguments` was given."""
    task_type = load_task_type(arguments.recipe)
    return task_type, load_settings(task_type, arguments.config, arguments.overrides)

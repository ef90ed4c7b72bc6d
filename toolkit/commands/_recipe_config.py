"""Arguments and loading shared by the commands that take a recipe and its YAML."""

from __future__ import annotations

import argparse

from toolkit.api.task import Task
from toolkit.commands import _options
from toolkit.config import Loaded
from toolkit.recipe import load_settings, load_task_type


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML and overrides."""
    _options.add(parser, "recipe")
    _options.add(parser, "overrides")
    _options.add(parser, "--config", required=True)


def load(arguments: argparse.Namespace) -> tuple[type[Task], Loaded]:
    """Loads the recipe and its settings.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if the recipe cannot be loaded.
    """
    task_type = load_task_type(arguments.recipe)
    return task_type, load_settings(task_type, arguments.config, arguments.overrides)

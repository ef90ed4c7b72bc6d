"""Arguments and loading shared by the commands that take a recipe and its YAML."""

from __future__ import annotations

import argparse

from toolkit.api.task import Task
from toolkit.commands import options
from toolkit.config import Loaded
from toolkit.recipe import config_file, load_settings, load_task_type, recipe_file


def add_recipe(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds the recipe, its YAML (which may not be `required`) and overrides."""
    options.add(parser, "recipe")
    options.add(parser, "overrides")
    options.add(parser, "--config", required=required)


def find(arguments: argparse.Namespace) -> None:
    """Replaces the names of the recipe and of its configuration by their paths.

    Raises:
        InputError: if there is no such recipe or configuration.
    """
    arguments.recipe = str(recipe_file(arguments.recipe))
    arguments.config = str(config_file(arguments.recipe, arguments.config))


def load(arguments: argparse.Namespace) -> tuple[type[Task], Loaded]:
    """Loads the recipe and its settings, and replaces names in the arguments by paths.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if the recipe cannot be loaded.
    """
    find(arguments)
    task_type = load_task_type(arguments.recipe)
    return task_type, load_settings(task_type, arguments.config, arguments.overrides)

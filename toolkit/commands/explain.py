"""Explain settings: `toolkit explain RECIPE [--config FILE] [section.key=value ...]`."""

from __future__ import annotations

import argparse

from toolkit.commands import _recipe_config
from toolkit.config.describe import explain_text, help_text
from toolkit.recipe import load_task_type


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and its YAML, which may be left out."""
    _recipe_config.add_recipe(parser, required=False)


def work(arguments: argparse.Namespace) -> None:
    """Prints every setting with its value and source: default, file, override or launcher.

    Without a configuration, it prints every setting with its type, default and meaning.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if there is no such recipe.
    """
    if arguments.config is None:
        print(help_text(load_task_type(arguments.recipe).Options, arguments.recipe))
        return
    _, loaded = _recipe_config.load(arguments)
    print(explain_text(loaded))

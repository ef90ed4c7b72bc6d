"""Print the JSON Schema of a recipe's YAML: `toolkit schema RECIPE`."""

from __future__ import annotations

import argparse
import json

from toolkit.commands import options
from toolkit.config.describe import schema
from toolkit.recipe import load_task_type


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe."""
    options.add(parser, "recipe")


def work(arguments: argparse.Namespace) -> None:
    """Prints the JSON Schema of the recipe's YAML.

    Raises:
        InputError: if the recipe cannot be loaded.
    """
    print(json.dumps(schema(load_task_type(arguments.recipe).Options), indent=2))

"""List the recipes and configurations: `toolkit ls [RECIPE]`."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from toolkit.commands import options

LAUNCH = "accelerate_configs"
"""The shipped folder of configurations of accelerate launch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, which may be left out."""
    options.add(parser, "recipe", nargs="?", default_text="all that come with the toolkit")


def work(arguments: argparse.Namespace) -> None:
    """Prints each recipe with the configurations beside it, and the launcher's configurations.

    Raises:
        InputError: if there is no such recipe.
    """
    from toolkit.base.package import shipped_root
    from toolkit.recipe import recipe_file, recipe_names

    for recipe in map(recipe_file, [arguments.recipe] if arguments.recipe else recipe_names()):
        _print(f"{recipe.stem}: {_summary(recipe)}", recipe.parent / "configs" / recipe.stem)
    if not arguments.recipe:
        _print("--launch: configurations of accelerate launch", shipped_root() / LAUNCH)


def _print(title: str, folder: Path) -> None:
    """Prints a title, and the YAMLs of a folder with the first sentence of each."""
    from rich.table import Table

    from toolkit.base.console import plain, rich_console

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for file in sorted(folder.glob("*.yaml")):
        first = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
        table.add_row(plain(f"  {file.stem}"), plain(first.partition(". ")[0].rstrip(".")))
    rich_console().print(plain(title), table, "", sep="\n")


def _summary(recipe: Path) -> str:
    """Returns the first line of a recipe's docstring, without running the recipe."""
    text = ast.get_docstring(ast.parse(recipe.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")

"""Copy a recipe to change it: `toolkit cp RECIPE DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.commands import options

SAMPLES = Path("recipes/data")
"""The sample data, as the shipped configurations name it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the folder."""
    options.add(parser, "recipe")
    about = "folder to make, with the recipe, its configurations and their sample data"
    parser.add_argument("copy", metavar="DIR", help=about)


def work(arguments: argparse.Namespace) -> None:
    """Copies a recipe, its configurations and their sample data, and prints how to train with the copy.

    Raises:
        InputError: if there is no such recipe, or the folder exists already.
        RunError: if the folder cannot be written.
    """
    import shlex
    import shutil

    from toolkit.base.errors import InputError, RunError
    from toolkit.base.files import expanded, kind_of, why, written_folder
    from toolkit.recipe import recipe_file

    recipe, folder = recipe_file(arguments.recipe), expanded(arguments.copy)
    if kind_of(folder):
        raise InputError(f"{folder}: exists already; give the name of a new folder")
    configs = Path("configs") / recipe.stem
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with written_folder(folder) as new:
            shutil.copy(recipe, new / recipe.name)
            if kind_of(recipe.parent / configs):
                shutil.copytree(recipe.parent / configs, new / configs)
            _copy_samples(new, folder)
    except OSError as error:
        raise RunError(f"cannot write {folder.absolute()}: {why(error, folder)}") from error
    names = sorted(file.stem for file in (folder / configs).glob("*.yaml"))
    copied = folder / recipe.name
    print(f"copied {copied}" + (f" and its configurations {', '.join(names)}" if names else ""))
    if names:
        example = "smoke" if "smoke" in names else names[0]
        command = ["accelerate", "launch", str(copied), "--config", str(folder / configs / f"{example}.yaml")]
        print(f"train with it:\n  toolkit train {shlex.quote(str(copied))} --config {example}\n  {shlex.join(command)}")


def _copy_samples(new: Path, folder: Path) -> None:
    # The copied configurations get sample data of their own: a configuration that is not shipped does not find the
    # shipped data, since a missing file there may be a typo.
    import re
    import shutil

    from toolkit.base.package import find_shipped

    def copied(match: re.Match[bytes]) -> bytes:
        name = match[1].decode()
        samples = find_shipped(SAMPLES / name)
        if samples is None:
            return match[0]
        shutil.copytree(samples, new / SAMPLES.name / name, dirs_exist_ok=True)
        return (folder / SAMPLES.name / name).as_posix().encode()

    for config in new.rglob("*.yaml"):
        text = config.read_bytes()
        config.write_bytes(re.sub(rf"\b{SAMPLES.as_posix()}/(\w+)".encode(), copied, text))

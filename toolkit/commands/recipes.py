"""Commands that begin: init, ls, cp."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.console import plain, quiet_libraries, rich_console, say
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import expanded, kind_of, why, written_folder, written_whole
from toolkit.base.outputs import output_file
from toolkit.base.package import find_shipped, shipped_root
from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.lab.init.draft import Draft


ASKED = ("data.columns.", "task.problem_type", "data.validation_split", "model.name_or_path", "train.num_train_epochs")
"""Settings that `--interactive` asks about, in this order, by the beginnings of their keys."""


def add_init(parser: argparse.ArgumentParser) -> None:
    """Adds the data, what is known about it, and the file to write."""
    data = "your data: a file, a folder of classes, or line-aligned files as 'train.{en,de}'"
    parser.add_argument("source", metavar="FILE", help=data)
    options.add(parser, "overrides")
    options.add(parser, "--recipe", default_text="the one that fits the columns")
    options.add(parser, "--model", default_text="a small pretrained model that fits the data")
    scratch = "train a small new model from the rows alone, which downloads nothing"
    parser.add_argument("--from-scratch", action="store_true", help=scratch)
    options.add_output(parser, "the name of the data with .yaml, in the current folder")
    parser.add_argument("--interactive", action="store_true", help="ask about the most important guesses")


def run_init(arguments: argparse.Namespace) -> None:
    """Writes the YAML and prints what was recognised and the next command."""
    from toolkit.config.keys import to_yaml
    from toolkit.lab.init.draft import AS_GIVEN, LABEL_MAP, draft
    from toolkit.lab.init.files import name_of
    from toolkit.lab.init.overview import Subject
    from toolkit.recipe import validate

    quiet_libraries()
    output = output_file(arguments.output or f"{name_of(arguments.source)}.yaml", arguments.overwrite)
    overrides = list(arguments.overrides)
    overrides += [f"model.name_or_path={arguments.model}"] if arguments.model else []
    made = draft(arguments.source, arguments.recipe, overrides, scratch=arguments.from_scratch)
    if arguments.interactive and (answers := _ask(made)):
        made = draft(arguments.source, made.kind.recipe, overrides + answers, scratch=arguments.from_scratch)
    omitted = Subject(made.config, made.task, made.rows, made.sample.profile).omissions()
    of_run = f"{made.kind.recipe} --config {shlex.quote(str(output))}"
    command = f"toolkit train {of_run}"
    with written_whole(output) as file:
        file.write(made.yaml(command))
        file.flush()
        # What has problems is not written. A model of the hub may be loaded later, and a former run does not matter.
        name = made.config.model.name_or_path
        here = name is None or expanded(name).is_dir()
        unused = [f"output_dir={file.name}.run"]
        found = validate(type(made.task), file.name, unused, elsewhere=not here, first_rows=False)
        told = tuple(problem.replace(Path(file.name).name, output.name) for problem in found.problems)
        replace(found, problems=told).raise_problems()
    say(f"{arguments.source}: {made.summary}")
    for guess in (guess for guess in made.guesses if guess.key == LABEL_MAP and guess.reason != AS_GIVEN):
        say(f"  - task.label_map={to_yaml(guess.value)}: {guess.reason}")
    for each in (*omitted, *made.rows.findings.warnings()):
        say(f"  - {each}")
    if made.task.has("baselines"):
        say(f"scores that the training must beat:\n\n  toolkit baseline {of_run} --no-model\n")
    say(f"wrote {output}; a comment gives the reason of each setting. Next:\n\n  {command}")


def _ask(made: Draft) -> list[str]:
    """Asks about guesses and returns the answers that differ from them, as overrides.

    Raises InputError if there is no one to ask.
    """
    from toolkit.config.keys import to_yaml

    print("Press Enter to accept the value in brackets.")
    answers = []
    for guess in (guess for start in ASKED for guess in made.guesses if guess.key.startswith(start)):
        shown = guess.value if isinstance(guess.value, str) else to_yaml(guess.value)
        print(f"\n# {guess.reason}")
        try:
            answer = input(f"{guess.key} [{shown}]: ").strip()
        except EOFError as error:
            raise InputError("--interactive: the input ended; without it, all guesses are accepted") from error
        if answer and answer != shown:
            answers.append(f"{guess.key}={answer}")
    return answers


SAMPLES = Path("recipes/data")
"""The sample data, as the shipped configurations name it."""


def add_cp(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the folder."""
    options.add(parser, "recipe")
    about = "folder to make, with the recipe, its configurations and their sample data"
    parser.add_argument("copy", nargs="?", metavar="DIR", help=about)
    options.add_output(parser, "DIR", folder=True)


def run_cp(arguments: argparse.Namespace) -> None:
    """Copies a recipe, its configurations and their sample data, and prints how to train with the copy."""
    from toolkit.recipe import recipe_file

    if (arguments.copy is None) == (arguments.output is None):
        raise InputError("name the folder to make, either as DIR or with --output")
    recipe, folder = recipe_file(arguments.recipe), expanded(arguments.copy or arguments.output)
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


LAUNCH = "accelerate_configs"
"""The shipped folder of configurations of accelerate launch."""


def add_ls(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, which is optional."""
    options.add(parser, "recipe", nargs="?", default_text="all that come with the toolkit")


def run_ls(arguments: argparse.Namespace) -> None:
    """Prints each recipe with the configurations beside it, and the launcher's configurations."""
    from toolkit.recipe import recipe_file, recipe_names

    for recipe in map(recipe_file, [arguments.recipe] if arguments.recipe else recipe_names()):
        _print(f"{recipe.stem}: {_summary(recipe)}", recipe.parent / "configs" / recipe.stem)
    if not arguments.recipe:
        _print("--launch: configurations of accelerate launch", shipped_root() / LAUNCH)


def _print(title: str, folder: Path) -> None:
    """Prints a title, and the YAMLs of a folder with the first sentence of each."""
    from rich.table import Table

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

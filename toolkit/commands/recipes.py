"""Write a YAML for your data: `toolkit init FILE [--output FILE] [--model M] [section.key=value ...]`."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.lab.init.draft import Draft

ASKED = ("data.columns.", "task.problem_type", "data.validation_split", "model.name_or_path", "train.num_train_epochs")
"""Settings that `--interactive` asks about, in this order, by the beginnings of their keys."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the data, what is known about it, and the file to write."""
    parser.add_argument(
        "source",
        metavar="FILE",
        help="your data: a file, a folder of classes, or line-aligned files as 'train.{en,de}'",
    )
    options.add(parser, "overrides")
    options.add(parser, "--recipe", default_text="the one that fits the columns")
    options.add(parser, "--model", default_text="a small pretrained model that fits the data")
    options.add(parser, "--output", default_text="the name of the data with .yaml, in the current folder")
    parser.add_argument("--interactive", action="store_true", help="ask about the most important guesses")


def work(arguments: argparse.Namespace) -> None:
    """Writes the YAML and prints what was recognised and the next command.

    Raises:
        InputError: if the file exists, the data fits no recipe, a setting is wrong, or nobody answers.
    """
    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.errors import InputError
    from toolkit.base.files import written_whole
    from toolkit.config.keys import to_yaml
    from toolkit.lab.init.draft import AS_GIVEN, LABEL_MAP, draft
    from toolkit.lab.init.files import name_of

    quiet_libraries()
    output = options.output_file(arguments.output or f"{name_of(arguments.source)}.yaml")
    if output.exists():
        raise InputError(f"{output} exists; name another file with --output, or delete it")
    overrides = list(arguments.overrides)
    overrides += [f"model.name_or_path={arguments.model}"] if arguments.model else []
    made = draft(arguments.source, arguments.recipe, overrides)
    if arguments.interactive and (answers := _ask(made)):
        made = draft(arguments.source, made.kind.recipe, overrides + answers)
    command = f"toolkit train {made.kind.recipe} --config {shlex.quote(str(output))}"
    with written_whole(output) as file:
        file.write(made.yaml(command))
    say(f"{arguments.source}: {made.summary}")
    for guess in (guess for guess in made.guesses if guess.key == LABEL_MAP and guess.reason != AS_GIVEN):
        say(f"  - task.label_map={to_yaml(guess.value)}: {guess.reason}")
    for warning in made.rows.findings.warnings():
        say(f"  - {warning}")
    say(f"wrote {output}; a comment gives the reason of each setting. Next:\n\n  {command}")


def _ask(made: Draft) -> list[str]:
    """Asks about guesses and returns the answers that differ from them, as overrides.

    Raises:
        InputError: if there is no one to ask.
    """
    from toolkit.base.errors import InputError
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

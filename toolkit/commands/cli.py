"""The `toolkit` command: it only finds the sub-command's file, which does the work.

Nothing but the standard library is imported until a sub-command is known, so that `toolkit --help` is instant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from toolkit.base.version import __version__

COMMANDS = {
    "validate": "check a configuration, and name everything that is wrong with it",
    "explain": "show every setting, its value and where it comes from",
    "schema": "print the JSON Schema of a recipe's YAML, for editors",
    "lr-plot": "draw the learning rate over the steps before a run",
    "plan": "say what memory a run will take, and what to switch to make it fit",
    "certify": "prove on your own model and rows that the numbers are right",
    "compare": "show what switches do to memory, time and quality on your own model and rows",
    "predict": "predict new rows with a finished run",
    "evaluate": "score a finished run on another labelled file",
    "runs": "list the runs in a folder",
    "diff": "say what differs between two runs",
    "reproduce": "run a run again from what it noted, and say whether the same bits come out",
    "merge": "merge the adapters of a finished run into its model",
    "data": "download a public dataset that the shipped configurations name",
}
"""Sub-commands; each is the module of that name in `toolkit.commands` (`_` for `-`), with `add_arguments` and
`work`."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs `toolkit <command> ...` and ends the process; exit codes as in `toolkit.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="toolkit", description="Fine-tune Hugging Face models, exactly.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"toolkit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    name = parser.parse_known_args(arguments[:1])[0].command
    module = import_module(f"toolkit.commands.{name.replace('-', '_')}")
    # Parsed by a parser of its own: sub-parsers do not take overrides that stand behind an option.
    summary = COMMANDS[name]
    command = argparse.ArgumentParser(
        prog=f"toolkit {name}", description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    module.add_arguments(command)
    parsed = command.parse_intermixed_args(arguments[1:])

    from toolkit.base.exits import guarded

    guarded(lambda: module.work(parsed))

"""The `toolkit` command, which dispatches to the sub-commands.

Only the standard library is imported until a sub-command is known, so that `toolkit --help` is instant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from toolkit.base.package import import_object
from toolkit.base.version import __version__
from toolkit.commands import options

COMMANDS = {
    "init": ("toolkit.commands.recipes", "write a YAML for your data that trains, with the reason of every setting"),
    "ls": ("toolkit.commands.recipes", "list the recipes that come with the toolkit, and their configurations"),
    "cp": ("toolkit.commands.recipes", "copy a recipe and its configurations, to change them"),
    "train": ("toolkit.commands.train", "train a recipe, on one or several processes"),
    "validate": ("toolkit.commands.train", "check a configuration and list everything that is wrong with it"),
    "explain": ("toolkit.commands.train", "show every setting: value and source, or without --config its meaning"),
    "schema": ("toolkit.commands.train", "print the JSON Schema of a recipe's YAML, for editors"),
    "lr-plot": ("toolkit.commands.find", "plot the learning rate of a run over its steps"),
    "lr-find": (
        "toolkit.commands.find",
        "find a learning rate: train while it rises, and see where the loss falls",
    ),
    "batch-find": (
        "toolkit.commands.find",
        "find a micro-batch: the largest that fits, and the fastest",
    ),
    "fetch": ("toolkit.commands.data", "put a run's model and rows into a folder, for machines without a network"),
    "preflight": ("toolkit.commands.plan", "check this machine before a run: files, disks, memory, GPUs, network"),
    "slurm": ("toolkit.commands.train", "write a job script for Slurm: training, seeds, a comparison or a search"),
    "profile": ("toolkit.commands.plan", "measure where the time of a step goes, and what to change"),
    "plan": ("toolkit.commands.plan", "estimate a run's memory and suggest settings that fit"),
    "certify": ("toolkit.commands.runs", "verify the toolkit's guarantees on your model and data"),
    "scale": ("toolkit.commands.plan", "measure how a training scales with the number of its processes"),
    "collectives": ("toolkit.commands.plan", "measure what exchanges between processes cost here"),
    "baseline": (
        "toolkit.commands.compare",
        "score answers that need no training: constant ones, simple models, and the model as it is",
    ),
    "compare": (
        "toolkit.commands.compare",
        "measure the effect of settings on memory, time and quality",
    ),
    "cross-validate": (
        "toolkit.commands.compare",
        "train on all but one of several folds of the rows, in turn, and average the scores",
    ),
    "doctor": (
        "toolkit.commands.data",
        "look for what is wrong with the rows: repeated, leaked or unusual ones, wrong labels, limits that cut",
    ),
    "search": ("toolkit.commands.compare", "search settings: the best point of a space, by trials"),
    "predict": ("toolkit.commands.predict", "predict new rows with a finished run"),
    "serve": ("toolkit.commands.deploy", "answer rows over HTTP with a finished run"),
    "demo": ("toolkit.commands.deploy", "try a finished run on a page in the browser"),
    "evaluate": ("toolkit.commands.predict", "evaluate a finished run on another labelled file"),
    "runs": ("toolkit.commands.runs", "list the runs in a folder, or show them on a page with their curves"),
    "diff": ("toolkit.commands.runs", "show what differs between two runs"),
    "reproduce": (
        "toolkit.commands.runs",
        "repeat a run and check that the results are bit-identical",
    ),
    "export": (
        "toolkit.commands.deploy",
        "pack a finished run for others: a zip with a script, or the model as ONNX, torch.export, int8 or merged",
    ),
    "push": ("toolkit.commands.deploy", "push the model of a finished run to the Hub"),
    "merge": ("toolkit.commands.deploy", "merge the adapters of a finished run into its model"),
    "checkpoint": ("toolkit.commands.checkpoint", "show, verify or convert a checkpoint"),
    "verify": ("toolkit.commands.checkpoint", "verify every file of a run"),
    "data": ("toolkit.commands.data", "show what a run will be trained on, or download a public dataset"),
}
"""Sub-commands with their modules, which have a table `COMMANDS` of their own, and their summaries."""


def command_of(name: str) -> options.Command:
    """Imports a sub-command's module and returns the sub-command."""
    commands: dict[str, options.Command] = import_object(COMMANDS[name][0]).COMMANDS
    return commands[name]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs `toolkit <command> ...` and ends the process; exit codes as in `toolkit.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        arguments = ["--help"]
    parser = argparse.ArgumentParser(
        prog="toolkit", description="Fine-tune Hugging Face models reproducibly.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"toolkit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (_, summary) in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    name = parser.parse_known_args(arguments[:1])[0].command
    summary, chosen = COMMANDS[name][1], command_of(name)
    # The arguments get a separate parser: only `parse_intermixed_args` accepts overrides after an option, and argparse
    # does not support it for sub-parsers.
    command = argparse.ArgumentParser(
        prog=f"toolkit {name}", description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    chosen.add_arguments(command)
    if not arguments[1:] and any(action.required for action in command._actions):  # argparse has no public list
        command.print_help()
        sys.exit(2)
    given = list(chosen.rewritten(options.with_current_names(name, arguments[1:])))
    parsed = command.parse_intermixed_args(given, argparse.Namespace(command=["toolkit", *arguments]))

    from toolkit.base.cli_errors import guarded

    guarded(lambda: chosen.work(parsed))

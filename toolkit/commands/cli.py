"""The `toolkit` command, which dispatches to the sub-commands.

Only the standard library is imported until a sub-command is known, so that `toolkit --help` is instant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from toolkit.base.package import import_object
from toolkit.base.version import __version__
from toolkit.commands import options

GROUPS = {
    "Start with your data": {
        "init": ("toolkit.commands.recipes", "write a YAML that trains on your data, with reasons"),
        "ls": ("toolkit.commands.recipes", "list the recipes and their configurations"),
        "cp": ("toolkit.commands.recipes", "copy a recipe and its configurations, to change them"),
        "data": ("toolkit.commands.data", "show what a run trains on, or download a public dataset"),
        "validate": ("toolkit.commands.train", "check a configuration and list every problem"),
        "explain": ("toolkit.commands.train", "show every setting's value and source, or its meaning"),
        "schema": ("toolkit.commands.train", "print the JSON Schema of a recipe's YAML, for editors"),
    },
    "Train and compare runs": {
        "train": ("toolkit.commands.train", "train a recipe, on one or several processes"),
        "evaluate": ("toolkit.commands.predict", "evaluate a finished run on another labelled file"),
        "runs": ("toolkit.commands.runs", "list the runs in a folder, or write a page with their curves"),
        "diff": ("toolkit.commands.runs", "show the differences between two runs"),
        "checkpoint": ("toolkit.commands.checkpoint", "show, verify or convert a checkpoint"),
        "verify": ("toolkit.commands.checkpoint", "verify the checksums of all files of a run"),
        "reproduce": ("toolkit.commands.runs", "repeat a run and check that the results are bit-identical"),
        "certify": ("toolkit.commands.runs", "verify the toolkit's guarantees on your model and data"),
    },
    "Improve data and settings": {
        "doctor": ("toolkit.commands.data", "find duplicate, leaked, unusual and mislabelled rows"),
        "baseline": ("toolkit.commands.compare", "score simple models and the model before training"),
        "lr-find": ("toolkit.commands.find", "find a learning rate by a range test"),
        "lr-plot": ("toolkit.commands.find", "plot the learning rate over the steps of a run"),
        "batch-find": ("toolkit.commands.find", "find the largest micro-batch that fits, and the fastest"),
        "compare": ("toolkit.commands.compare", "measure the effect of settings on memory, time and quality"),
        "search": ("toolkit.commands.compare", "search for the best settings by trials"),
        "cross-validate": ("toolkit.commands.compare", "train on every fold of the rows and average the scores"),
        "profile": ("toolkit.commands.plan", "measure where the time of a step goes, and what to change"),
    },
    "Use machines and clusters": {
        "plan": ("toolkit.commands.plan", "estimate a run's memory and suggest settings that fit"),
        "preflight": ("toolkit.commands.plan", "check this machine: files, disks, memory, GPUs, network"),
        "fetch": ("toolkit.commands.data", "bundle a run's model and rows for machines without a network"),
        "slurm": ("toolkit.commands.train", "write a Slurm job: training, seeds, a comparison, a search"),
        "scale": ("toolkit.commands.plan", "measure how a training scales with its processes"),
        "collectives": ("toolkit.commands.plan", "measure the speed of exchanges between processes"),
    },
    "Hand over a finished run": {
        "mine": ("toolkit.commands.predict", "find texts that are similar to a row's, but do not answer it"),
        "calibrate": ("toolkit.commands.predict", "find when a run's answers are sure enough to use"),
        "predict": ("toolkit.commands.predict", "predict new rows"),
        "export": ("toolkit.commands.deploy", "export a zip, ONNX, torch.export, int8 or merged weights"),
        "merge": ("toolkit.commands.deploy", "merge the adapters of a run into its model"),
        "serve": ("toolkit.commands.deploy", "serve predictions over HTTP"),
        "demo": ("toolkit.commands.deploy", "try the model on a page in the browser"),
        "push": ("toolkit.commands.deploy", "push the model to the Hub"),
    },
}
"""Sub-commands by group, in the order of use: their module, which has the functions of `Command`, and summary."""
COMMANDS = {name: row for group in GROUPS.values() for name, row in group.items()}
"""The same without the groups."""


class Command(NamedTuple):
    """A sub-command, such as `lr-find`."""

    add_arguments: Callable[[argparse.ArgumentParser], None]  # `add_lr_find`: adds its arguments to a parser
    work: Callable[[argparse.Namespace], None]  # `run_lr_find`; raises ToolkitError for problems that users can solve
    # `rewrite_lr_find`, if there is one: turns the words of the command line into others before they are parsed
    rewritten: Callable[[Sequence[str]], Iterable[str]]


def command_of(name: str) -> Command:
    """Imports a sub-command's module and returns the sub-command."""
    module, own = import_object(COMMANDS[name][0]), name.replace("-", "_")
    rewritten = getattr(module, f"rewrite_{own}", list)
    return Command(getattr(module, f"add_{own}"), getattr(module, f"run_{own}"), rewritten)


def overview() -> str:
    """Returns the commands with their summaries, by group, for a terminal of 80 columns."""
    width = max(map(len, COMMANDS))
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:{width}}  {summary}" for name, (_, summary) in group.items())])
        for title, group in GROUPS.items()
    )


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs `toolkit <command> ...` and ends the process; exit codes as in `toolkit.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        arguments = ["--help"]
    parser = argparse.ArgumentParser(
        prog="toolkit",
        usage="%(prog)s [-h] [--version] command ...",
        description=f"Fine-tune Hugging Face models reproducibly.\n\n{overview()}",
        epilog="`toolkit command --help` shows the arguments of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"toolkit {__version__}")
    parser.add_argument("command", choices=COMMANDS, help=argparse.SUPPRESS)
    name = parser.parse_known_args(arguments[:1])[0].command

    from toolkit.base.cli_errors import guarded

    guarded(lambda: run_command(name, arguments))


def run_command(name: str, arguments: Sequence[str]) -> None:
    """Parses the arguments of a sub-command, the first of which is its name, and runs it."""
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
    given = list(chosen.rewritten(options.with_current_names(name, arguments[1:], command)))
    parsed = command.parse_intermixed_args(given, argparse.Namespace(command=["toolkit", *arguments]))
    options.reject_own_inputs(parsed)
    chosen.work(parsed)

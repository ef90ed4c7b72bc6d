"""Writes the options of every command into docs/commands.md, from the commands themselves.

python docs/render_commands.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from toolkit.commands.cli import COMMANDS, command_of

PAGE = Path(__file__).with_name("commands.md")
BEGIN, END = "<!-- commands: written by docs/render_commands.py -->", "<!-- end of the commands -->"


def arguments_of(name: str) -> list[argparse.Action]:
    """Returns the arguments of a command, without `--help`."""
    parser = argparse.ArgumentParser(add_help=False)
    command_of(name).add_arguments(parser)
    return parser._actions  # argparse has no public list of them


def spelling(action: argparse.Action) -> str:
    """Returns an argument as written on the command line."""
    value = "|".join(map(str, action.choices)) if action.choices and not action.metavar else action.metavar
    if not action.option_strings:
        return f"{value or action.dest}{' ...' if action.nargs == '*' else ''}"
    takes_value = action.nargs != 0
    return f"{action.option_strings[0]}{f' {value}' if takes_value else ''}"


def section(name: str) -> Iterator[str]:
    """Yields the lines about a command."""
    summary = COMMANDS[name][1]
    yield f"## {name}\n"
    yield f"{summary[0].upper()}{summary[1:]}.\n"
    yield "| argument | meaning |\n|---|---|"
    for action in arguments_of(name):
        written = spelling(action).replace("|", "\\|")
        meaning = str(action.help).replace("%%", "%")  # as argparse shows it
        yield f"| `{written}` | {meaning}{'; required' if action.required and action.option_strings else ''} |"
    yield ""


def rendered() -> str:
    """Returns the page with the arguments of the commands as the code has them."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    text = "\n".join(line for name in COMMANDS for line in section(name))
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")

"""Writes the options of every command into docs/commands.md, from the commands themselves.

python docs/render_commands.py
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.commands.cli import COMMANDS, GROUPS, command_of

PAGE = Path(__file__).with_name("commands.md")
BEGIN, END = "<!-- commands: written by docs/render_commands.py -->", "<!-- end of the commands -->"
SHARED_BY = 4
"""Commands that must have an argument with the same meaning for it to be described once, before all of them."""


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


def is_optional(action: argparse.Action) -> bool:
    """Returns whether a command runs without an argument."""
    return not action.required if action.option_strings else action.nargs in ("*", "?")


def table(actions: Iterable[argparse.Action]) -> Iterator[str]:
    """Yields the lines of a table of arguments."""
    yield "| argument | meaning |\n|---|---|"
    for action in actions:
        written = spelling(action).replace("|", "\\|")
        yield f"| `{written}` | {str(action.help).replace('%%', '%')} |"  # as argparse shows it
    yield ""


def section(name: str, shared: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Yields the lines about a command, with a table of the arguments that are not `shared`."""
    summary, actions = COMMANDS[name][1], arguments_of(name)
    own = [action for action in actions if (spelling(action), action.help) not in shared]
    listed = [each for each in actions if each not in own or not each.option_strings or not is_optional(each)]
    listed.sort(key=is_optional)
    synopsis = [f"[{spelling(each)}]" if is_optional(each) else spelling(each) for each in listed]
    yield f"### {name}\n"
    yield f"`toolkit {' '.join([name, *synopsis])}`: {summary}.\n"
    yield from table(own) if own else ()


def rendered() -> str:
    """Returns the page with the arguments of the commands as the code has them."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    every = {(spelling(action), action.help): action for name in COMMANDS for action in arguments_of(name)}
    count = Counter((spelling(action), action.help) for name in COMMANDS for action in arguments_of(name))
    shared = [key for key in every if count[key] >= SHARED_BY]
    lines = ["## Shared arguments\n", *table(every[key] for key in shared)]
    for title, group in GROUPS.items():
        lines += [f"## {title}\n", *(line for name in group for line in section(name, shared))]
    text = "\n".join(lines)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")

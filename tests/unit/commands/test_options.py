"""Options of the commands: each name has one meaning and a help text, and former spellings still work."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
from commands import run_command

from toolkit.commands import options
from toolkit.commands.cli import COMMANDS, command_of, overview


def arguments() -> Iterator[tuple[str, argparse.Action]]:
    """Yields every argument of every command, with the command's name."""
    for command in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        command_of(command).add_arguments(parser)
        for action in parser._actions:
            yield command, action


def name_of(action: argparse.Action) -> str:
    return action.option_strings[0] if action.option_strings else action.dest


def meaning(action: argparse.Action) -> tuple[object, ...]:
    """Returns the properties that all arguments of one name share; default and required may differ."""
    choices = None if action.choices is None else tuple(action.choices)
    number = None if action.nargs == "?" else action.nargs  # one that may be left out is still the same one
    return (str(action.help).partition(" (default: ")[0], action.metavar, number, choices, type(action))


def test_an_argument_means_the_same_in_every_command():
    meanings: dict[str, dict[tuple[object, ...], str]] = {}
    for command, action in arguments():
        assert action.help, (command, name_of(action))
        meanings.setdefault(name_of(action), {}).setdefault(meaning(action), command)
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_an_argument_of_several_commands_is_in_the_table():
    commands: dict[str, set[str]] = {}
    for command, action in arguments():
        commands.setdefault(name_of(action), set()).add(command)
    shared = {name for name, found in commands.items() if len(found) > 1}
    assert shared <= options.ARGUMENTS.keys()
    assert commands.keys() >= options.ARGUMENTS.keys()


def test_files_and_folders_are_written_to_options_of_one_name():
    written = {name_of(action) for _, action in arguments() if "output" in name_of(action)}
    assert written == {"--output", "--output-dir"}


@pytest.mark.parametrize("command", options.FORMER)
def test_a_former_spelling_is_the_option_of_today(command):
    known = {name_of(action) for name, action in arguments() if name == command}
    for former, current in options.FORMER[command].items():
        assert current in known
        assert former not in known
        given = [former, "value", f"{former}=value", f"section.key={former}"]
        expected = [current, "value", f"{current}=value", f"section.key={former}"]
        assert options.with_current_names(command, given) == expected


def test_a_command_takes_a_former_spelling(capsys):
    assert run_command("predict", "nowhere", "--data", "rows.csv") == 2
    assert "not a finished run" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two"])
def test_numbers_below_the_least_are_rejected(text, capsys):
    assert run_command("lr-plot", "recipes/reviews.py", "--config", "x.yaml", "--processes", text) == 2
    assert f"--processes: received {text}, must be a whole number of at least 1" in capsys.readouterr().err


def test_the_overview_names_every_command_once_and_fits_a_terminal() -> None:
    lines = overview().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)
    assert max(map(len, lines)) <= 80

"""Options of the commands: each name has one meaning and a help text, and former spellings still work."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
from commands import run_command
from runs import ROOT

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
    kind = type(action).__name__.replace("Append", "Store")  # or be repeated
    return (str(action.help).partition(" (default: ")[0], action.metavar, number, choices, kind)


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
    assert written == {"--output"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_former_spelling_is_the_option_of_today(command, capsys):
    known = {name_of(action) for name, action in arguments() if name == command}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    command_of(command).add_arguments(parser)
    anywhere = {"--output-dir": "--output"} if "--output" in known else {}
    for former, current in (anywhere | options.FORMER.get(command, {})).items():
        assert current in known
        assert former not in known
        given = [former, "value", f"{former}=value", f"section.key={former}"]
        expected = [current, "value", f"{current}=value", f"section.key={former}"]
        assert options.with_current_names(command, given, parser) == expected
        assert capsys.readouterr().err == f"toolkit {command}: {former} is now {current}\n"


def test_a_command_takes_a_former_spelling(capsys):
    assert run_command("predict", "nowhere", "--data", "rows.csv") == 2
    said = capsys.readouterr().err
    assert "toolkit predict: --data is now --input\n" in said
    assert "not a finished run" in said


WRITING = {
    "init": (str(ROOT / "recipes/data/reviews/train.csv"),),
    "lr-plot": ("reviews", "--config", "smoke", "train.max_steps=2"),
    "plan": ("reviews", "--config", "smoke"),
    "runs": (),
    "slurm": ("reviews", "--config", "smoke", "--time", "1:00:00", "--gpus", "0"),
}
"""Commands that write one file, with what they need before they write it."""


@pytest.mark.parametrize("command", [name for name, action in arguments() if name_of(action) == "--overwrite"])
def test_a_file_that_may_have_been_edited_is_replaced_only_on_request(command, tmp_path, capsys):
    names = {"lr-plot": "a.svg", "runs": "a.csv", "predict": "a.csv", "mine": "a.csv", "export": "a.zip"}
    file = tmp_path / names.get(command, "a.x")
    file.write_text("edited")
    given = {"predict": ("run", "--input", "rows.csv"), "evaluate": ("run", "--data", "rows.csv"), "export": ("run",),
             "mine": ("run", "--data", "rows.csv")}  # fmt: skip
    words = (command, *(WRITING | given)[command], "--output", file)
    assert run_command(*words) == 2
    assert f"{file} exists, and may have been edited; name another file with --output, or add --overwrite" in (
        capsys.readouterr().err
    )
    if command in ("init", "lr-plot", "slurm"):
        assert run_command(*words, "--overwrite") == 0
        assert file.read_text() != "edited"


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two"])
def test_numbers_below_the_least_are_rejected(text, capsys):
    assert run_command("lr-plot", "recipes/reviews.py", "--config", "x.yaml", "--processes", text) == 2
    assert f"--processes: received {text}, must be a whole number of at least 1" in capsys.readouterr().err


def test_the_overview_names_every_command_once_and_fits_a_terminal() -> None:
    lines = overview().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)
    assert max(map(len, lines)) <= 80

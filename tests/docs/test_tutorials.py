"""Every command of every tutorial runs, in order and offline, in a folder that is empty at first."""

from __future__ import annotations

import argparse
import re
import shlex
import socket
from importlib import import_module
from pathlib import Path

import pytest
from commands import run_command
from launching import ROOT

from toolkit.commands.cli import COMMANDS

PAGES = sorted(ROOT.glob("docs/tutorials/*.md"))
RECIPES = {path.stem for path in ROOT.glob("recipes/*.py")}


def commands(page: Path) -> list[list[str]]:
    """Returns the commands of a page's shell blocks, each as words."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines]


def test_there_is_a_tutorial_for_every_task_and_kind_of_input() -> None:
    names = {page.stem for page in PAGES}
    assert names >= (RECIPES - {"reviews"}) | {"reviews_text", "reviews_image", "reviews_audio"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_has_only_commands_of_the_toolkit_and_all_steps(page: Path) -> None:
    found = commands(page)
    assert {words[0] for words in found} == {"toolkit"}
    assert [words[1] for words in found if words[1] not in COMMANDS] == []
    assert {"cp", "data", "init", "validate", "train", "predict", "evaluate", "export"} <= {words[1] for words in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_settings_of_a_tutorial_are_valid(page: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for _, name, *arguments in commands(page):
        parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
        import_module(COMMANDS[name][0]).add_arguments(parser)
        parser.parse_intermixed_args(arguments)
        if name in ("cp", "init", "validate"):
            assert run_command(name, *arguments) == 0, capsys.readouterr().err
        elif name == "train":
            assert run_command("validate", *arguments, "--settings-only") == 0, capsys.readouterr().err


@pytest.fixture
def no_network(monkeypatch) -> None:
    """Lets every connection fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("a tutorial used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch, no_network, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for _, *arguments in commands(page):
        assert run_command(*arguments) == 0, (arguments, capsys.readouterr().err)
    written = re.findall(r"--output (\S+)", page.read_text(encoding="utf-8"))
    assert [name for name in written if not (tmp_path / name).stat().st_size] == []
    assert (next(tmp_path.glob("outputs/*-trial")) / "report.html").is_file()

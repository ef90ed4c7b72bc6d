"""Every command of every tutorial runs, in order and offline, in a folder that is empty at first."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_command
from launching import ROOT
from served import Server

from toolkit.commands.cli import COMMANDS, command_of
from toolkit.commands.deploy import SERVE_PORT as PORT

PAGES = sorted(ROOT.glob("docs/tutorials/*.md"))
RECIPES = {path.stem for path in ROOT.glob("recipes/*.py")}
STEPS = {"cp", "data", "init", "validate", "train", "predict", "evaluate", "export", "serve"}
ADDRESS = f"http://127.0.0.1:{PORT}"


def commands(page: Path) -> list[list[str]]:
    """Returns the commands of a page's shell blocks, each as words."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines]


def run_script(*words: str) -> None:
    """Runs a script of the copied sample data."""
    subprocess.run([sys.executable, *words], check=True, capture_output=True)


def test_there_is_a_tutorial_for_every_task_and_kind_of_input() -> None:
    names = {page.stem for page in PAGES}
    assert names >= (RECIPES - {"reviews"}) | {"reviews_text", "reviews_image", "reviews_audio"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_has_all_steps_and_ends_with_a_request_to_its_server(page: Path) -> None:
    *found, request = commands(page)
    assert {words[0] for words in found} <= {"toolkit", "python"}
    assert STEPS <= {words[1] for words in found if words[0] == "toolkit"} <= COMMANDS.keys()
    assert found[-1][1] == "serve"
    assert request[0] == "curl"
    assert request[1] in (f"{ADDRESS}/predict", f"{ADDRESS}/search?top_k=3")


@pytest.mark.fast(4)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_settings_of_a_tutorial_are_valid(page: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for program, name, *arguments in commands(page)[:-1]:
        if program == "python":
            run_script(name, *arguments)
            continue
        parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
        command_of(name).add_arguments(parser)
        parser.parse_intermixed_args(arguments)
        if name in ("cp", "init", "validate"):
            assert run_command(name, *arguments) == 0, capsys.readouterr().err
        elif name == "train":
            assert run_command("validate", *arguments, "--settings-only") == 0, capsys.readouterr().err


@pytest.fixture
def no_network(monkeypatch) -> None:
    """Lets every connection of this process fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("a tutorial used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def answer(folder: Path, serve: list[str], request: list[str]) -> dict[str, object]:
    """Serves a run at another port than the page's, and returns the answer to the page's request for one row."""
    with Server(folder, *serve) as server:
        program, *words = (word.replace(ADDRESS, server.address) for word in request)
        command = [program, "--silent", "--show-error", "--noproxy", "*", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ((found,),) = json.loads(done.stdout).values()
    return dict(found[0] if isinstance(found, list) else found)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch, no_network, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    *found, (_, serve, run, *corpus), request = commands(page)
    for program, *arguments in found:
        if program == "python":
            run_script(*arguments)
            continue
        assert run_command(*arguments) == 0, (arguments, capsys.readouterr().err)
    files = [word if word.startswith("--") else str(tmp_path / word) for word in (run, *corpus)]
    assert {"prediction", "document"} & answer(tmp_path, [serve, *files], request).keys()
    written = re.findall(r"--output (\S+)", page.read_text(encoding="utf-8"))
    assert [name for name in written if not (tmp_path / name).stat().st_size] == []
    assert (next(tmp_path.glob("outputs/*-trial")) / "report.html").is_file()

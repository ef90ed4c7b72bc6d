"""The notebook of the worked example: from the committed figures, in Jupyter's format, with code that works."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from launching import ROOT
from runs import shipped

from toolkit.commands.cli import command_of
from toolkit.recipe import validate

FILE = ROOT / "docs" / "worked_example.ipynb"
NOTEBOOK: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
CELLS: list[dict[str, Any]] = NOTEBOOK["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def commands() -> Iterator[list[str]]:
    """Yields the words of each shell command, without variables before it."""
    for cell in CODE:
        for line in source(cell).replace("\\\n", "").splitlines():
            if line.startswith("!"):
                words = shlex.split(line[1:])
                yield words[1:] if "=" in words[0] else words


def test_it_is_that_of_the_figures(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    example = import_module("worked_example")
    found = json.loads(example.FIGURES.read_text(encoding="utf-8"))
    written = FILE.read_text(encoding="utf-8")
    assert example.notebook(found) == written, "run `python docs/worked_example.py --render`"


def test_it_has_the_format_of_jupyter() -> None:
    assert NOTEBOOK.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in CELLS]
    assert len(set(names)) == len(names) > 10
    assert all(name.replace("-", "").isalnum() and len(name) <= 64 for name in names)
    common = {"cell_type", "id", "metadata", "source"}
    for cell in CELLS:
        assert cell.keys() == (common | {"execution_count", "outputs"} if cell in CODE else common)
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert not source(cell).endswith("\n")
    for output in (output for cell in CODE for output in cell["outputs"]):
        assert output.keys() == {"output_type", "name", "text"}
        assert (output["output_type"], output["name"]) == ("stream", "stdout")
    counts = [cell["execution_count"] for cell in CODE if cell["execution_count"] is not None]
    assert counts == list(range(1, len(counts) + 1))


def test_its_python_runs_and_prints_what_is_shown(monkeypatch) -> None:
    monkeypatch.chdir(ROOT / "docs")  # where Jupyter starts
    names: dict[str, Any] = {}
    shown = 0
    for cell in CODE:
        if source(cell).startswith("!"):
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(source(cell), names)
        assert printed.getvalue() == "".join(line for output in cell["outputs"] for line in output["text"])
        assert all(len(line) <= 80 for line in printed.getvalue().splitlines())
        shown += bool(printed.getvalue())
    assert all(len(line) <= 120 for cell in CODE for line in cell["source"])
    assert shown == len(names["found"]["variants"])  # all figures, and the effect of each change


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_its_commands_are_those_of_the_toolkit(words: list[str], monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    if words[0] == "toolkit":
        command_of(words[1]).add_arguments(parser)
        parser.parse_intermixed_args(words[2:])
        return
    program, recipe, option, config, *overrides = words
    assert (program, option) == ("python", "--config")
    problems = validate(shipped(recipe), config, overrides, elsewhere=True).problems
    assert [each for each in problems if "`toolkit data get " not in each] == []  # its data are downloaded
    assert overrides[-1].startswith("output_dir=outputs/")


def test_its_pictures_exist() -> None:
    text = "\n".join(source(cell) for cell in CELLS if cell not in CODE)
    pictures = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert len(pictures) > 3
    assert [name for name in pictures if not (FILE.parent / name).is_file()] == []

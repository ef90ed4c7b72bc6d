"""The notebooks of the worked examples: from the committed figures, in Jupyter's format, with code that works."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from launching import ROOT
from runs import shipped

from toolkit.commands.cli import command_of
from toolkit.recipe import validate

FILES = {name: ROOT / "docs" / f"{name}.ipynb" for name in ("worked_example", "worked_example_images")}
Cell = dict[str, Any]


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def cells_of(file: Path) -> list[Cell]:
    cells: list[Cell] = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return cells


@pytest.fixture(params=FILES)
def file(request) -> Path:
    """Returns a notebook."""
    return FILES[request.param]


@pytest.fixture
def cells(file) -> list[Cell]:
    return cells_of(file)


@pytest.fixture
def code(cells) -> list[Cell]:
    """Returns the cells with code of a notebook."""
    return [cell for cell in cells if cell["cell_type"] == "code"]


def commands() -> Iterator[list[str]]:
    """Yields the words of each shell command, without variables before it."""
    for cell in (cell for file in FILES.values() for cell in cells_of(file) if cell["cell_type"] == "code"):
        for line in source(cell).replace("\\\n", "").splitlines():
            if line.startswith("!"):
                words = shlex.split(line[1:])
                yield words[1:] if "=" in words[0] else words


@pytest.mark.parametrize("name", ["text", "images"])
def test_it_is_that_of_the_figures(name, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    example = import_module("worked_example")
    walk = example.WALKS[name]
    found = json.loads(example.figures_file(walk).read_text(encoding="utf-8"))
    written = example.notebook_file(walk).read_text(encoding="utf-8")
    assert example.notebook(walk, found) == written, "run `python docs/worked_example.py`"


def test_it_has_the_format_of_jupyter(file, cells, code) -> None:
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in cells]
    assert len(set(names)) == len(names) > 10
    assert all(name.replace("-", "").isalnum() and len(name) <= 64 for name in names)
    common = {"cell_type", "id", "metadata", "source"}
    for cell in cells:
        assert cell.keys() == (common | {"execution_count", "outputs"} if cell in code else common)
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert not source(cell).endswith("\n")
    for output in (output for cell in code for output in cell["outputs"]):
        assert output.keys() == {"output_type", "name", "text"}
        assert (output["output_type"], output["name"]) == ("stream", "stdout")
    counts = [cell["execution_count"] for cell in code if cell["execution_count"] is not None]
    assert counts == list(range(1, len(counts) + 1))


def test_its_python_runs_and_prints_what_is_shown(code, monkeypatch) -> None:
    monkeypatch.chdir(ROOT / "docs")  # where Jupyter starts
    names: dict[str, Any] = {}
    shown = 0
    for cell in code:
        if source(cell).startswith("!"):
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(source(cell), names)
        assert printed.getvalue() == "".join(line for output in cell["outputs"] for line in output["text"])
        assert all(len(line) <= 80 for line in printed.getvalue().splitlines())
        shown += bool(printed.getvalue())
    lines = [line.rstrip() for cell in code if not source(cell).startswith("!") for line in cell["source"]]
    assert max(map(len, lines)) <= 120
    found = names["found"]  # all figures, and the effect of each change
    assert shown == len(found["variants"]) + len(found.get("transfer", {}).get("variants", ()))


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


def test_its_pictures_exist(file, cells, code) -> None:
    text = "\n".join(source(cell) for cell in cells if cell not in code)
    pictures = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert len(pictures) > 3
    assert [name for name in pictures if not (file.parent / name).is_file()] == []

"""Importing objects by dotted names; every name in every table can be imported."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import ROOT

from toolkit.base.package import import_object
from toolkit.engine.callbacks import CALLBACKS

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
LIBRARIES = ("bitsandbytes", "schedulefree", "toolkit", "torch", "transformers")
"""Packages whose objects the tables name."""


def names_in_tables(path: Path) -> Iterator[str]:
    """Yields the dotted names in the dict literals at the top of a module."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.Dict):
            continue
        for value in statement.value.values:
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
                    yield node.value


NAMES = sorted({
    *(f"toolkit.engine.callbacks.{place}" for _, place in CALLBACKS.values()),
    *(name for path in ROOT.glob("toolkit/**/*.py") for name in names_in_tables(path)
      if name.partition(".")[0] in LIBRARIES),
})  # fmt: skip
INSTALLED = [name for name in NAMES if importlib.util.find_spec(name.partition(".")[0])]


def test_the_tables_are_found() -> None:
    from toolkit.commands.cli import COMMANDS
    from toolkit.distributed.strategies import STRATEGIES
    from toolkit.engine import ENGINES
    from toolkit.optim.presets import PRESETS

    expected = [*ENGINES.values(), *STRATEGIES.values(), *(place for place, _ in COMMANDS.values())]
    expected += [preset.constructor for preset in PRESETS.values()]
    assert set(expected) <= set(NAMES)


@pytest.mark.parametrize("name", INSTALLED)
def test_every_name_in_a_table_can_be_imported(name: str) -> None:
    assert import_object(name) is not None


def test_modules_and_what_they_hold_are_found() -> None:
    assert import_object("os.path.join") is __import__("os").path.join
    assert import_object("xml.dom.minidom").__name__ == "xml.dom.minidom"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Recorder", r"expected package\.module\.Name, received 'Recorder'"),
        ("no_such_package.Name", "No module named 'no_such_package'"),
        ("json.no_such_name", r"No module named 'json\.no_such_name'"),
    ],
)
def test_a_name_that_leads_nowhere_is_named(name: str, message: str) -> None:
    with pytest.raises(ImportError, match=message):
        import_object(name)


def test_the_works_of_tools_are_functions() -> None:
    from toolkit.lab.worker import WORK

    assert {name: place for name, place in WORK.items() if not callable(import_object(place))} == {}

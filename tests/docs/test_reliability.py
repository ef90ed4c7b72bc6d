"""docs/reliability.md is what its sources say, and names tests that exist."""

from __future__ import annotations

import ast
import json

import pytest
from faults import KINDS
from launching import ROOT


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import render_reliability

    return render_reliability


def test_the_page_is_what_its_sources_say(script) -> None:
    assert script.rendered() == script.PAGE.read_text(encoding="utf-8"), "run `python docs/render_reliability.py`"


def test_every_test_that_the_page_names_exists(script) -> None:
    named = [test for row in script.rows() for test in row["tests"]]
    assert named
    for test in named:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_every_fault_test_is_named_or_a_variant_of_one(script) -> None:
    files = {test.partition("::")[0] for row in script.rows() for test in row["tests"]}
    assert {f"faults/{path.name}" for path in (ROOT / "tests" / "faults").glob("test_*.py")} <= files


def test_every_count_is_shown_and_was_recorded(script) -> None:
    assert set(script.COUNTED) == set(KINDS)
    assert set(json.loads(script.RECORD.read_text(encoding="utf-8"))["counts"]) == set(KINDS)

"""docs/defects.yaml names tests for each defect, which exist, and says without what they fail."""

from __future__ import annotations

import ast
import re

from ruamel.yaml import YAML
from runs import ROOT

NAMED = re.compile(r"[a-z_/]+\.py\b")
"""A file of the toolkit in a sentence."""


def test_every_defect_has_tests_that_exist_and_say_without_what_they_fail() -> None:
    defects = YAML(typ="safe").load(ROOT / "docs/defects.yaml")["defects"]
    assert list(defects) == [f"D{number}" for number in range(1, 26)]
    for number, defect in defects.items():
        assert any(defect["tests"].values()), f"{number}: no test was tried"
        for test, sentence in defect["tests"].items():
            file, _, name = test.partition("::")
            functions = ast.walk(ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")))
            assert name in {each.name for each in functions if isinstance(each, ast.FunctionDef)}, test
            if sentence is not None:  # otherwise it was not tried
                named = NAMED.findall(sentence)
                assert sentence.startswith("fails if "), test
                assert named, test
                assert all((ROOT / "toolkit" / path).is_file() for path in named), test

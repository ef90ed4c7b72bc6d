"""docs/defects.yaml names a test for each defect, and each of these tests exists."""

from __future__ import annotations

import ast

from ruamel.yaml import YAML
from runs import ROOT


def test_every_defect_has_tests_that_exist() -> None:
    defects = YAML(typ="safe").load(ROOT / "docs/defects.yaml")["defects"]
    assert list(defects) == [f"D{number}" for number in range(1, 26)]
    for number, defect in defects.items():
        assert defect["tests"], number
        for test in defect["tests"]:
            file, _, name = test.partition("::")
            functions = ast.walk(ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")))
            assert name in {each.name for each in functions if isinstance(each, ast.FunctionDef)}, test

"""Labels as files have them: numbers as people write them, printed lists, vectors of 0 and 1, decimals."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.api.batch import BadRow
from toolkit.base.errors import DataError
from toolkit.data.values import parse_number, printed_list
from toolkit.tasks.heads import HEADS
from toolkit.tasks.labels import label_text

OPTIONS = {
    "labels": None,
    "label_map": {},
    "label_separator": ",",
    "decimal": None,
    "scale_targets": False,
    "class_weights": "none",
}


def head(problem_type: str, **options: Any) -> Any:
    return HEADS[problem_type](SimpleNamespace(**OPTIONS | options))


@pytest.mark.parametrize(
    ("text", "decimal", "number"),
    [
        ("3,5", ",", 3.5),
        ("1.234,56", ",", 1234.56),
        ("1,234.56", ".", 1234.56),
        ("14,52 €", ",", 14.52),
        ("€ 14,52", ",", 14.52),
        ("-$5", None, -5.0),
        ("\u221212,5", ",", -12.5),
        ("12 %", None, 12.0),
        ("1'234.5", ".", 1234.5),
        ("1\u202f234,5", ",", 1234.5),
        ("5 EUR", None, 5.0),
        ("1 100,50 kr", ",", 1100.5),
        ("Rs. 500", None, 500.0),
        ("US$ 5.50", None, 5.5),
        ("1e-3", None, 0.001),
        (".5", None, 0.5),
        (Decimal("2.50"), None, 2.5),
    ],
)
def test_numbers_are_read_as_people_write_them(text, decimal, number):
    assert parse_number(text, decimal) == number


@pytest.mark.parametrize(
    ("text", "decimal"),
    [("3,5", None), ("1,234", None), ("12,34,5", "."), ("1.5", ","), ("3 5", ","), ("2024-01-02", None), ("5kg", None),
     ("(5)", None), ("1.2.3", None), ("inf", None), (1e39, None), (10**400, None), (True, None)],
)  # fmt: skip
def test_what_is_no_number_under_the_convention_is_rejected(text, decimal):
    with pytest.raises(BadRow):
        parse_number(text, decimal)


def test_a_comma_without_a_convention_says_what_to_set():
    with pytest.raises(BadRow, match=r"task\.decimal"):
        head("regression").check("3,5")
    assert head("regression", decimal=",").check("3,5") == [3.5]
    assert head("regression", labels=["a", "b"]).check("3.5,1") == [3.5, 1.0]
    assert head("regression").check("[3.5, 1]") == [3.5, 1.0]


@pytest.mark.parametrize(
    ("text", "values"),
    [("['big', 'red']", ["big", "red"]), ('["a"]', ["a"]), ("[1 0 0]", [1, 0, 0]), ("['a b' 'c']", ["a b", "c"]),
     ("[]", []), ("red", None), ("(1,25)", None), ("(1, 25)", [1, 25]), ("{red,big}", ["red", "big"]),
     ("[red, big one]", ["red", "big one"]), ("{red}", ["red"]), ("[red]", None), ("[1. 0.]", [1.0, 0.0]),
     ("{'red', 'big'}", ["big", "red"]), ("set()", []),
     ("('red',)", ["red"]), ('{"red": true, "big": false}', {"red": True, "big": False}), ("(5)", None),
     ("(red, big)", None), ('(the "best")', None)],
)  # fmt: skip
def test_printed_lists_are_lists(text, values):
    assert printed_list(text) == values


def names(value: list[dict[str, Any]]) -> list[str]:
    return [part["name"] for part in value if part["value"]]


def test_printed_lists_are_several_labels_and_no_class():
    assert names(head("multi_label_classification").check("['big', 'red']")) == ["big", "red"]
    with pytest.raises(BadRow, match="multi_label_classification"):
        head("single_label_classification").check("['big', 'red']")
    assert names(head("multi_label_classification").check("{'big': 0, 'red': 1}")) == ["red"]
    for text in ("{'big', 'red'}", "('big', 'red')"):
        with pytest.raises(BadRow, match="multi_label_classification"):
            head("single_label_classification").check(text)
    broken = ("['big', 'red]", "['big', 'red', ...]", "('big', 'red)")
    for text in (*broken, "frozenset({'big'})", "Index(['big', 'red'])", "array(['big'], dtype=object)"):
        with pytest.raises(BadRow, match="cannot be read"):
            head("multi_label_classification").check(text)
    assert head("single_label_classification").check("[red]") == "[red]"
    assert names(head("multi_label_classification").check("[red]")) == ["red"]  # among lists, one of one name


@pytest.mark.parametrize("value", [[0, 1, 1], "0,1,1", "[0, 1, 1]", "[0 1 1]", [0.0, 1.0, 1.0], [False, True, True]])
def test_vectors_of_0_and_1_are_the_named_labels(value):
    assert names(head("multi_label_classification", labels=["a", "b", "c"]).check(value)) == ["b", "c"]


@pytest.mark.parametrize("rows", [[[0, 1], [1, 0]], ["0,1,0", "1,0,0"], ["[1 0]", "[0 1]"]])
def test_vectors_without_names_are_rejected(rows):
    several = head("multi_label_classification")
    with pytest.raises(DataError, match=r"task\.labels"):
        several.learn([several.check(row) for row in rows])


def test_ids_of_labels_stay_ids():
    several = head("multi_label_classification")
    several.learn([several.check(row) for row in ([0, 1], [3], [1])])
    assert several.state["labels"] == ["0", "1", "3"]


def test_decimals_are_the_same_label_in_every_format():
    assert label_text(Decimal("5.00")) == label_text(5.0) == label_text("5") == "5"

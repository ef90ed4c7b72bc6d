"""Examples mix right and wrong predictions and all classes."""

from __future__ import annotations

from typing import Any

from toolkit.api.batch import Description
from toolkit.report.examples import FEWEST, MOST, Examples


class Classes:
    """A task whose records are pairs of a label and a prediction."""

    error_name = "wrong"

    def class_column(self) -> str:
        return "label"

    def describe(self, record: dict[str, Any]) -> Description:
        return Description("", record["prediction"], record["label"])

    def error(self, record: dict[str, Any]) -> tuple[float, ...] | None:
        return None if record["label"] == record["prediction"] else (1.0,)


def chosen(pairs: str, count: int | None = None) -> list[str]:
    """Returns the chosen pairs with their lines."""
    examples = Examples(Classes())
    for line, (label, prediction) in enumerate(pairs.split(), start=1):
        examples.see(line, {"label": label, "prediction": prediction})
    return [f"{line}{record['label']}{record['prediction']}" for line, record in examples.chosen(count)]


def test_sorted_files_show_all_classes_right_and_wrong() -> None:
    pairs = "aa aa aa aa aa ab bb bb bb ba cc"
    assert chosen(pairs, 3) == ["1aa", "10ba", "11cc"]
    assert chosen(pairs) == ["1aa", "2aa", "6ab", "7bb", "10ba", "11cc"]


def test_one_of_each_class_within_limits() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    assert chosen(" ".join(letter * 2 for letter in letters)) == [
        f"{i + 1}{c * 2}" for i, c in enumerate(letters[:MOST])
    ]
    assert len(chosen("aa " * 50)) == FEWEST
    assert chosen("aa") == ["1aa"]

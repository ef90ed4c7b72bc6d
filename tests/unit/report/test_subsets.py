"""Slices by the numbers of rows."""

from __future__ import annotations

import numpy as np

from toolkit.report.subsets import quarters


def parts(numbers: list[float]) -> list[tuple[str, int]]:
    found = quarters("seconds", numbers)
    assert sorted(np.concatenate([places for _, places in found])) == [*range(len(numbers))]
    return [(name, len(places)) for name, places in found]


def test_numbers_are_cut_at_quartiles_in_their_order() -> None:
    assert parts([float(number) for number in reversed(range(12))]) == [
        ("seconds=0 to 2", 3),
        ("seconds=3 to 5", 3),
        ("seconds=6 to 8", 3),
        ("seconds=9 to 11", 3),
    ]


def test_equal_numbers_are_in_one_part() -> None:
    assert parts([1.5] * 9) == [("seconds=1.5", 9)]
    assert parts([1.0] * 6 + [2.0, 7.25]) == [("seconds=1", 6), ("seconds=2 to 7.25", 2)]
    assert parts([3.0]) == [("seconds=3", 1)]

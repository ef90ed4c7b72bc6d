"""Sets rows aside, seeded and optionally stratified; the result depends on the arguments alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolkit.base.errors import DataError

INSTEAD = {
    "data.validation_split": "Give more rows, another data.group_column, a data.validation_file, or "
    "data.validation_split=0 to train without evaluation.",
    "data.test_split": "Give more rows, another data.group_column, or a data.test_file, or remove data.test_split.",
}
"""What to do if the rows cannot be split, by setting."""


def set_aside(
    total: int,
    held: int,
    seed: int,
    classes: Sequence[Any] | None = None,
    units: np.ndarray | None = None,
    setting: str = "data.validation_split",
) -> np.ndarray:
    """Chooses the rows to set aside.

    With `units`, units are taken in random order, and one is set aside if that brings the number of rows of each class
    closer to its target. A class that has all its rows in one unit is not set aside.

    Args:
        total: number of rows.
        held: number of rows to set aside; at least one row is set aside, and one stays.
        seed: random seed; the choice also depends on the number of rows, their classes and their units.
        classes: `[rows]` class of each row. Its distribution is kept (to within a row if there are no units) in both
            parts; a class that occurs only once is not set aside.
        units: `[rows]` number of each row's unit, whose rows stay together; None if each row is a unit of its own.
        setting: dotted key of the setting, for messages.

    Returns:
        `[rows]` whether each row is set aside.

    Raises:
        DataError: if there are too few rows or units for two parts.
    """
    if total < 2:
        raise DataError(f"{setting}: {total} row cannot be split in two. {INSTEAD[setting]}")
    held = min(max(held, 1), total - 1)
    generator = np.random.default_rng(seed)
    groups = [np.arange(total)] if classes is None else _groups(classes)
    counts = np.array([len(group) for group in groups])
    if counts.max() < 2:
        raise DataError(f"{setting}: every class occurs only once, so no row can be set aside. {INSTEAD[setting]}")
    shares = _shares(counts, held)
    if units is None:
        parts = [generator.permutation(group)[:share] for group, share in zip(groups, shares, strict=True)]
        aside = np.concatenate(parts)
    else:
        aside = _whole_units(groups, units, shares, generator)
    if not len(aside):
        raise DataError(f"{setting}: {_too_few(units)} {INSTEAD[setting]}")
    chosen = np.zeros(total, dtype=bool)
    chosen[aside] = True
    return chosen


def _groups(values: Sequence[Any]) -> list[np.ndarray]:
    """Returns the row positions of each value, in the order of the values' first rows."""
    groups: dict[Any, list[int]] = {}
    for position, value in enumerate(values):
        groups.setdefault(value, []).append(position)
    return [np.array(group) for group in groups.values()]


def _whole_units(
    groups: Sequence[np.ndarray], units: np.ndarray, targets: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Chooses units in random order, such that the number of rows of each class comes close to its target.

    Args:
        groups: the rows of each class.
        units: `[rows]` number of each row's unit.
        targets: `[classes]` number of rows to set aside.
        generator: source of the order.

    Returns:
        The places of the chosen rows; empty if no unit can be set aside.
    """
    order = np.argsort(units, kind="stable")
    starts = np.searchsorted(units[order], np.arange(units.max() + 2)).tolist()
    classes = np.empty(len(units), dtype=np.int64)
    for number, group in enumerate(groups):
        classes[group] = number
    of_row, missing = classes[order].tolist(), targets.tolist()
    left = [len(group) - 1 for group in groups]
    chosen: list[int] = []
    closest: tuple[int, int] | None = None
    for unit in generator.permutation(len(starts) - 1).tolist():
        inside = Counter(of_row[starts[unit] : starts[unit + 1]])
        if any(count > left[number] for number, count in inside.items()):
            continue
        change = sum(abs(missing[number] - count) - abs(missing[number]) for number, count in inside.items())
        if closest is None or change < closest[0]:
            closest = change, unit
        if change < 0:
            chosen.append(unit)
            for number, count in inside.items():
                missing[number] -= count
                left[number] -= count
    if not chosen and closest is not None:
        chosen = [closest[1]]
    return np.concatenate([order[:0], *(order[starts[unit] : starts[unit + 1]] for unit in chosen)])


def _too_few(units: np.ndarray | None) -> str:
    """Returns why no row can be set aside, as a sentence."""
    if units is None:
        raise AssertionError("without units, at least one row can be set aside")
    sets = "1 set" if units.max() == 0 else f"{units.max() + 1:,} sets"
    return (
        f"the {len(units):,} rows form {sets} of rows that stay together (equal inputs, equal values in "
        "data.group_column, or a chain of both), and none can be set aside without taking all rows of a class."
    )


def _shares(counts: np.ndarray, held: int) -> np.ndarray:
    """Distributes `held` rows over groups by largest remainder; at least one row of each group stays.

    Args:
        counts: `[groups]` number of rows of each group, at least one of them above 1.
        held: number of rows to set aside; fewer are returned if the groups are too small.

    Returns:
        `[groups]` number of rows to set aside of each group.
    """
    spare = counts - 1
    held = min(held, int(spare.sum()))
    exact = held * np.where(spare > 0, counts, 0) / counts[spare > 0].sum()
    shares = np.minimum(np.floor(exact).astype(int), spare)
    for group in np.argsort(shares - exact, kind="stable"):
        if shares.sum() < held and shares[group] < spare[group]:
            shares[group] += 1
    # What groups at their limit could not give is taken from those with the most rows left.
    while shares.sum() < held:
        shares[np.argmax(spare - shares)] += 1
    return shares

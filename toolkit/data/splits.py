"""Sets rows aside, by share or in folds, seeded and optionally stratified; a function of the arguments alone."""

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
    """Returns whether each row is set aside, `[rows]`: at least one is, and at least one stays.

    The distribution of `classes` is kept in both parts (to within a row if there are no units); a class that occurs
    only once is not set aside. Rows with the same number in `units` stay together: units are taken in random order, and
    one is set aside if that brings the number of rows of each class closer to its target. Raises DataError, which names
    `setting`, if there are too few rows or units for two parts.
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


def share_of(total: int, fraction: float, seed: int, classes: Sequence[Any] | None = None) -> np.ndarray:
    """Returns the places of a random, stratified fraction of rows, of which a smaller fraction is a part."""
    generator, moments = np.random.default_rng(seed), np.empty(total)
    for group in [np.arange(total)] if classes is None else _groups(classes):
        moments[generator.permutation(group)] = np.arange(len(group)) / len(group)
    return np.sort(np.lexsort((generator.permutation(total), moments))[: max(1, round(total * fraction))])


def _groups(values: Sequence[Any]) -> list[np.ndarray]:
    """Returns the row positions of each value, in the order of the values' first rows."""
    groups: dict[Any, list[int]] = {}
    for position, value in enumerate(values):
        groups.setdefault(value, []).append(position)
    return [np.array(group) for group in groups.values()]


def _whole_units(
    groups: Sequence[np.ndarray], units: np.ndarray, targets: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Returns rows of random units that bring each class of `groups` close to its target; may be none."""
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
    """Distributes `held` rows over groups of `counts` rows by largest remainder; one row of each stays."""
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


INSTEAD_OF_FOLDS = "Lower data.folds, give more rows, or set another data.group_column."


def fold_numbers(
    total: int, folds: int, seed: int, classes: Sequence[Any] | None = None, units: np.ndarray | None = None
) -> np.ndarray:
    """Returns the number of each row's fold, from 0, `[rows]`.

    Units of several rows are placed first, the largest first: each in the fold that has the smallest share of its
    classes. The other rows then make the number of rows of each class as equal as possible in all folds. Without such
    units, the folds differ by at most one row, and by at most one row of each class. Raises DataError if a fold would
    have no rows.
    """
    generator = np.random.default_rng(seed)
    kinds = np.zeros(total, dtype=np.int64) if classes is None else _numbered(classes)
    counts = np.zeros((folds, kinds.max(initial=-1) + 1), dtype=np.int64)
    found = np.full(total, -1)
    if units is not None:
        _place_units(units, kinds, counts, found, generator)
    for kind in range(counts.shape[1]):
        rows = generator.permutation(np.flatnonzero((kinds == kind) & (found < 0)))
        more = _filled(counts[:, kind], len(rows), counts.sum(axis=1))
        found[rows] = np.repeat(np.arange(folds), more)
        counts[:, kind] += more
    if (counts.sum(axis=1) == 0).any():
        sets = total if units is None else len(np.unique(units))
        raise DataError(
            f"data.folds: {total:,} rows, in {sets:,} sets that stay together, cannot fill {folds} folds. "
            f"{INSTEAD_OF_FOLDS}"
        )
    return found


def _numbered(classes: Sequence[Any]) -> np.ndarray:
    """Returns the number of each row's class, in the order of the classes' first rows."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in classes], dtype=np.int64)


def _place_units(
    units: np.ndarray, kinds: np.ndarray, counts: np.ndarray, found: np.ndarray, generator: np.random.Generator
) -> None:
    """Places the units of several rows, and enters them in `found` (`[rows]`) and `counts` (`[folds, classes]`)."""
    sizes = np.bincount(units)
    order = np.argsort(units, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)])
    weights = 1 / np.bincount(kinds, minlength=counts.shape[1])
    several = generator.permutation(np.flatnonzero(sizes > 1))
    for unit in several[np.argsort(-sizes[several], kind="stable")]:
        rows = order[starts[unit] : starts[unit + 1]]
        inside, numbers = np.unique(kinds[rows], return_counts=True)
        crowded = counts[:, inside] @ (numbers * weights[inside] ** 2)
        fold = np.lexsort((counts.sum(axis=1), crowded))[0]
        found[rows] = fold
        counts[fold, inside] += numbers


def _filled(counts: np.ndarray, more: int, totals: np.ndarray) -> np.ndarray:
    """Returns how many of `more` rows each fold gets to level its `counts`; the fewest in `totals` get the rest."""
    low, high = int(counts.min()), int(counts.max()) + more
    while low < high:  # the highest level to which the rows fill all folds below it
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(level - counts, 0).sum() <= more else (low, level - 1)
    added = np.maximum(low - counts, 0)
    open_folds = np.flatnonzero(counts <= low)
    first = open_folds[np.argsort((totals + added)[open_folds], kind="stable")]
    added[first[: more - int(added.sum())]] += 1
    return added

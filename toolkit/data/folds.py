"""Divides rows into folds of equal size, seeded and optionally stratified; results depend on the arguments alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from toolkit.base.errors import DataError

INSTEAD_OF_FOLDS = "Lower data.folds, give more rows, or set another data.group_column."


def fold_numbers(
    total: int, folds: int, seed: int, classes: Sequence[Any] | None = None, units: np.ndarray | None = None
) -> np.ndarray:
    """Divides rows into folds.

    Units of several rows are placed first, the largest first: each in the fold that has the smallest share of its
    classes. The other rows then make the number of rows of each class as equal as possible in all folds. Without such
    units, the folds differ by at most one row, and by at most one row of each class.

    Args:
        total: number of rows.
        folds: number of folds, at least 2.
        seed: random seed; the folds also depend on the number of rows, their classes and their units.
        classes: `[rows]` class of each row; None if rows have no class.
        units: `[rows]` number of each row's unit, whose rows stay together; None if each row is a unit of its own.

    Returns:
        `[rows]` number of each row's fold, from 0.

    Raises:
        DataError: if a fold would have no rows.
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
    """Returns how many of `more` rows each fold receives, such that their `counts` become as equal as possible.

    Args:
        counts: `[folds]` rows of the class that the folds have.
        more: number of rows to distribute.
        totals: `[folds]` rows of all classes; folds with fewer receive the rows that are left over.
    """
    low, high = int(counts.min()), int(counts.max()) + more
    while low < high:  # the highest level to which the rows fill all folds below it
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(level - counts, 0).sum() <= more else (low, level - 1)
    added = np.maximum(low - counts, 0)
    open_folds = np.flatnonzero(counts <= low)
    first = open_folds[np.argsort((totals + added)[open_folds], kind="stable")]
    added[first[: more - int(added.sum())]] += 1
    return added

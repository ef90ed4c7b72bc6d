"""Splits of one table: seeded, stratified where rows have a class, a function of its arguments alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.base.errors import DataError

if TYPE_CHECKING:
    import datasets

INSTEAD = "Give more rows, a data.validation_file, or data.validation_split=0 to train without evaluation."


def split(
    rows: datasets.Dataset, fraction: float, seed: int, stratify_by: str | None = None
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Sets part of the rows aside; both parts keep the order of the file.

    Args:
        rows: a table's rows.
        fraction: share of the rows to set aside, between 0 and 1; rounded to at least one row.
        seed: what the choice depends on, with the number of rows and the values of `stratify_by`.
        stratify_by: column whose values keep their shares (to within a row) in both parts; a value that occurs once
            stays in the first part.

    Returns:
        The rows that stay and the rows set aside.

    Raises:
        DataError: if there are too few rows for two parts.
    """
    total = len(rows)
    if total < 2:
        raise DataError(f"data.validation_split={fraction:g}: {total} row cannot be split in two. {INSTEAD}")
    held = min(max(round(total * fraction), 1), total - 1)
    generator = np.random.default_rng(seed)
    if stratify_by is None:
        aside = generator.permutation(total)[:held]
    else:
        groups = _groups(rows[stratify_by])
        counts = np.array([len(group) for group in groups])
        if counts.max() < 2:
            raise DataError(
                f"data.validation_split={fraction:g}: every value of {stratify_by!r} occurs only once, so "
                f"no row can be set aside. {INSTEAD}"
            )
        shares = _shares(counts, held)
        aside = np.concatenate(
            [generator.permutation(group)[:share] for group, share in zip(groups, shares, strict=True)]
        )
    chosen = np.zeros(total, dtype=bool)
    chosen[aside] = True
    return rows.select(np.flatnonzero(~chosen)), rows.select(np.flatnonzero(chosen))


def head(rows: datasets.Dataset, limit: int | None) -> datasets.Dataset:
    """Returns the first `limit` rows, or all of them if there are fewer or `limit` is None."""
    return rows if limit is None or limit >= len(rows) else rows.select(range(limit))


def _groups(values: Any) -> list[np.ndarray]:
    """Row positions by value, in the order of the values' first rows."""
    groups: dict[Any, list[int]] = {}
    for position, value in enumerate(values):
        groups.setdefault(value, []).append(position)
    return [np.array(group) for group in groups.values()]


def _shares(counts: np.ndarray, held: int) -> np.ndarray:
    """Shares `held` rows out by largest remainder; of every group at least one row stays.

    Args:
        counts: `[groups]` rows of each group, one of them at least 2.
        held: rows to set aside; less come out where groups cannot spare as many.

    Returns:
        `[groups]` rows to take of each.
    """
    spare = counts - 1
    held = min(held, int(spare.sum()))
    exact = held * np.where(spare > 0, counts, 0) / counts[spare > 0].sum()
    shares = np.minimum(np.floor(exact).astype(int), spare)
    for group in np.argsort(shares - exact, kind="stable"):
        if shares.sum() < held and shares[group] < spare[group]:
            shares[group] += 1
    # What groups at their limit could not give comes from those with the most rows left.
    while shares.sum() < held:
        shares[np.argmax(spare - shares)] += 1
    return shares

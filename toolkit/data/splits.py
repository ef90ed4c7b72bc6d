"""Splits a table in two, seeded and optionally stratified; the result depends on the arguments alone."""

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
    """Splits rows in two parts, which keep the order of the file.

    Args:
        rows: rows of a table.
        fraction: fraction of the rows to set aside, between 0 and 1; at least one row is set aside.
        seed: random seed; the choice also depends on the number of rows and the values of `stratify_by`.
        stratify_by: column whose distribution is kept (to within a row) in both parts; a value that occurs only once
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
    """Returns the row positions of each value, in the order of the values' first rows."""
    groups: dict[Any, list[int]] = {}
    for position, value in enumerate(values):
        groups.setdefault(value, []).append(position)
    return [np.array(group) for group in groups.values()]


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

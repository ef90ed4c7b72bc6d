"""Rows that are equal: repeated in a split, with another label, or in two splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from toolkit.base.console import counted
from toolkit.data.keys import NO_GROUP, first_like
from toolkit.lab.doctor.findings import Finding, Part, pair


def equal_rows(parts: Sequence[Part]) -> Iterator[Finding]:
    """Yields the findings about equal rows within and across splits; of files, the content is compared."""
    repeated, contrary = [], []
    for part in parts:
        keys = part.keys
        same = first_like(keys.inputs, keys.labels)
        later = np.flatnonzero(same != np.arange(len(same))).tolist()
        repeated += [pair(part, row, part, int(same[row])) for row in later]
        first = first_like(keys.inputs)
        others = np.flatnonzero(keys.labels != keys.labels[first]).tolist()
        contrary += [pair(part, row, part, int(first[row])) for row in others]
    if repeated:
        rows = counted(len(repeated), "row")
        yield Finding("duplicates", len(repeated), f"{rows} with inputs and label of an earlier row.", repeated)
    if contrary:
        rows = counted(len(contrary), "row")
        yield Finding("contradictory", len(contrary), f"{rows} with the inputs of an earlier row, but another label.",
                      contrary)  # fmt: skip
    for one, other in combinations(parts, 2):
        values, places = np.unique(one.keys.inputs, return_index=True)
        shared = np.flatnonzero(np.isin(other.keys.inputs, values))
        if len(shared):
            first = places[np.searchsorted(values, other.keys.inputs[shared])]
            leaked = [pair(other, row, one, like) for row, like in zip(shared.tolist(), first.tolist(), strict=True)]
            total = counted(len(other.numbers), f"{other.name} row")
            verb = "is" if len(leaked) == 1 else "are"
            said = f"{len(leaked):,} of {total} {verb} also in the {one.name} rows; scores on them are optimistic."
            yield Finding("leaked", len(leaked), said, leaked)


def shared_groups(parts: Sequence[Part], column: str | None) -> Iterator[Finding]:
    """Yields the groups that are in two splits."""
    for one, other in combinations(parts, 2):
        groups = np.setdiff1d(np.intersect1d(one.keys.groups, other.keys.groups), [NO_GROUP])
        if not len(groups):
            continue
        rows = np.flatnonzero(np.isin(other.keys.groups, groups))
        sets = counted(len(groups), "group")
        yield Finding(
            "shared_groups", len(groups),
            f"{sets} by {column!r} with {counted(len(rows), f'{other.name} row')} "
            f"{'is' if len(groups) == 1 else 'are'} also in the {one.name} rows.",
            [other.place(row) for row in rows.tolist()],
        )  # fmt: skip

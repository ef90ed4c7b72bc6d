"""Findings about the rows of a run before it trains: labels, repeated rows, groups, and skipped rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from toolkit.api.batch import Omission
from toolkit.api.task import Task
from toolkit.base.console import counted, say, shorten, warn
from toolkit.data.keys import NO_GROUP, first_like, misspelt, near_equal
from toolkit.data.table import Table, row_names

FEW_EXAMPLES = 5
"""Labels with fewer training rows are named."""
MOST_LISTED = 12
"""Most labels in a message; of more, the most frequent ones are named."""
EARLIER = "earlier"
"""Name of the set of the rows on which the run that the model comes from was validated."""
MOST_PAIRS = 3
"""Most pairs of rows that are kept as examples."""


@dataclass(frozen=True)
class Pairs:
    """How many rows have something in common with another one, and examples: the other row's number, and its own."""

    number: int = 0
    examples: Sequence[tuple[int | str, int | str]] = ()

    def __str__(self) -> str:
        return ", ".join(f"{other} and {row}" for other, row in self.examples)


@dataclass(frozen=True)
class RowFindings:
    """Findings about the rows of a run."""

    # number of usable rows by split, after splitting and limiting their number
    rows: Mapping[str, int] = field(default_factory=dict)
    # number of rows with each label by split, in the order of the labels' ids; empty without labels
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    label_notes: Sequence[str] = ()  # the task's own notes about its labels, as sentences
    # by source, the rows that equal an earlier one in inputs and label
    duplicates: Mapping[str, Pairs] = field(default_factory=dict)
    # by source, the rows with the inputs of an earlier one, but another label
    contradictory: Mapping[str, Pairs] = field(default_factory=dict)
    # by the names of two splits, the rows of the second whose inputs are in the first
    shared: Mapping[tuple[str, str], Pairs] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)  # number of groups by split; empty without groups
    # by the names of two splits, the number of groups that are in both
    shared_groups: Mapping[tuple[str, str], int] = field(default_factory=dict)
    group_column: str | None = None  # the column that groups rows, or None
    omissions: Sequence[Omission] = ()  # rows and columns that are not used

    def notes(self) -> list[str]:
        """Returns facts about the rows, as sentences."""
        found = [*self.label_notes]
        if train := self.labels.get("train"):
            found.insert(0, f"{len(train)} labels in {counted(self.rows['train'], 'training row')}: {listed(train)}.")
        if self.groups:
            parts = [f"{self.groups[name]:,} in {name} ({self.rows[name]:,} rows)" for name in self.groups]
            found.append(f"Groups by {self.group_column!r}: {', '.join(parts)}.")
        return found

    def warnings(self) -> list[str]:
        """Returns possible problems, as sentences."""
        train = self.labels.get("train", {})
        found = []
        if alike := near_equal(train):
            groups = "; ".join(", ".join(f"{name!r} ({train[name]:,})" for name in group) for group in alike)
            found.append(f"Labels that differ only in spelling: {groups}. Merge them with task.label_map.")
        if wrong := misspelt(train):
            pairs_of = ", ".join(f"{rare!r} ({train[rare]:,}) for {right!r}" for rare, right in wrong.items())
            found.append(f"Labels that look misspelt: {pairs_of}. Correct them with task.label_map.")
        if rare := {name: count for name, count in train.items() if count < FEW_EXAMPLES}:
            found.append(f"Labels with fewer than {FEW_EXAMPLES} training rows: {listed(rare)}.")
        for source, pairs in self.duplicates.items():
            found.append(f"{source}: {counted(pairs.number, 'exact duplicate')} of earlier rows (rows {pairs}).")
        for source, pairs in self.contradictory.items():
            rows = counted(pairs.number, "row")
            found.append(f"{source}: {rows} with the inputs of an earlier row, but another label (rows {pairs}).")
        for (first, second), pairs in self.shared.items():
            rows = f"{pairs.number:,} of {counted(self.rows[second], f'{second} row')}"
            where = f"also in the {first} rows (rows {pairs} of their files)"
            found.append(f"{rows} {where}; scores on them are optimistic.")
        for (first, second), number in self.shared_groups.items():
            found.append(f"{number:,} of {self.groups[second]:,} groups of the {second} rows are also in {first}.")
        return found

    def tell(self) -> None:
        """Logs notes, omissions and warnings on the main process."""
        for note in (*self.notes(), *(f"{each}." for each in self.omissions)):
            say(note)
        for warning in self.warnings():
            warn(warning)


def find(
    task: Task, tables: Mapping[str, Table], splits: Mapping[str, Table], group_column: str | None, chosen: bool
) -> RowFindings:
    """Examines the rows of a run: the checked tables of its sources, and its `splits` after limiting their number.

    Groups of `group_column` are reported even if nothing was split where the user has `chosen` it.
    """
    labels = {name: counts for name, part in splits.items() if (counts := task.label_counts(part.rows))}
    notes = task.label_notes(labels["train"]) if labels else []
    names = [name for name in splits if name != EARLIER]  # its rows are often validation rows again
    pairs = [*combinations(names, 2), *(("train", name) for name in splits if name == EARLIER)]
    grouped = {name: np.setdiff1d(part.keys.groups, [NO_GROUP]) for name, part in splits.items()}
    tell_groups = group_column is not None and (chosen or len(tables) < len(splits))
    return RowFindings(
        rows={name: len(part.rows) for name, part in splits.items()},
        labels=labels,
        label_notes=notes,
        duplicates={table.source: found for table in tables.values() if (found := _duplicates(table)).number},
        contradictory={
            table.source: found
            for table in tables.values()
            if not task.several_labels and (found := _contradictory(table)).number
        },
        shared={(a, b): found for a, b in pairs if (found := _shared(splits[a], splits[b])).number},
        groups={name: len(found) for name, found in grouped.items()} if tell_groups else {},
        shared_groups={
            (a, b): count for a, b in pairs if tell_groups and (count := len(np.intersect1d(grouped[a], grouped[b])))
        },
        group_column=group_column,
    )


def _duplicates(table: Table) -> Pairs:
    first = first_like(table.keys.inputs, table.keys.labels)
    return _pairs(table, first, first != np.arange(len(first)))


def _contradictory(table: Table) -> Pairs:
    first = first_like(table.keys.inputs)
    return _pairs(table, first, table.keys.labels != table.keys.labels[first])


def _pairs(table: Table, others: np.ndarray, which: np.ndarray) -> Pairs:
    """Returns the rows of a table for which `which` (bool, `[rows]`) is true, with the places of `others`."""
    places = np.flatnonzero(which)
    shown = places[:MOST_PAIRS]
    numbers = zip(row_names(table.rows[others[shown]]), row_names(table.rows[shown]), strict=True)
    return Pairs(len(places), tuple(numbers))


def _shared(first: Table, second: Table) -> Pairs:
    values, places = np.unique(first.keys.inputs, return_index=True)
    shared = np.flatnonzero(np.isin(second.keys.inputs, values))
    shown = shared[:MOST_PAIRS]
    others = places[np.searchsorted(values, second.keys.inputs[shown])]
    numbers = zip(row_names(first.rows[others]), row_names(second.rows[shown]), strict=True)
    return Pairs(len(shared), tuple(numbers))


def some(names: Sequence[str]) -> str:
    """Returns names as a list; of many, the first ones and the number of the others."""
    more = [f"{len(names) - MOST_LISTED} more"] if len(names) > MOST_LISTED else []
    return ", ".join([*(shorten(name, 30) for name in names[:MOST_LISTED]), *more])


def listed(counts: Mapping[str, int]) -> str:
    """Returns labels with their numbers of rows; of many labels, the most frequent ones."""
    shown = counts if len(counts) <= MOST_LISTED else dict(Counter(counts).most_common(MOST_LISTED))
    more = [f"{len(counts) - MOST_LISTED} more"] if len(counts) > MOST_LISTED else []
    return ", ".join([*(f"{shorten(name, 30)} ({count:,})" for name, count in shown.items()), *more])

"""What the doctor finds about labels and columns, and the rows with their places in the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.task import Task
from toolkit.base.console import counted
from toolkit.data.findings import FEW_EXAMPLES, RowFindings, listed
from toolkit.data.keys import Keys, near_equal
from toolkit.data.loading import CheckedRows
from toolkit.data.table import FILE, NUMBER, row_names
from toolkit.lab.init.profile import Profile

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Part:
    """The rows of a split."""

    name: str  # name of the split
    files: Sequence[str]  # the file of each row, for messages
    rows: datasets.Dataset  # the checked rows
    numbers: np.ndarray  # `[rows]` number of each row in its file
    keys: Keys  # digests of the rows

    def place(self, row: int) -> dict[str, Any]:
        """Returns where a row is, as a JSON object."""
        return {"split": self.name, "file": self.files[row], "row": int(self.numbers[row])}


@dataclass(frozen=True)
class Finding:
    """Something that may be wrong."""

    kind: str  # what it is, one of the keys of `toolkit.lab.doctor.report.TITLES`
    count: int  # how many rows, columns, labels or groups it is about
    message: str  # a sentence about it, with the number
    # the rows, the most important ones first: `split`, `file`, `row`, and what is said about it
    rows: Sequence[Mapping[str, Any]] = ()
    details: Mapping[str, Any] = field(default_factory=dict)  # further JSON values


@dataclass(frozen=True)
class Suggestion:
    """A suggested change."""

    overrides: Sequence[str]  # `section.key=value` strings, which belong together
    why: str  # the reason, as a sentence


def parts_of(checked: CheckedRows) -> list[Part]:
    """Returns the splits of a run: training, validation, test."""
    parts = []
    for name, rows in checked.splits.items():
        table = checked.tables[name if name in checked.tables else "train"]
        files = [table.parts.get(file, table).source for file in rows[FILE][:]]
        place = {name: place for place, name in enumerate(row_names(table.rows))}
        keys = table.keys.select(np.array([place[name] for name in row_names(rows)]))
        parts.append(Part(name, files, rows, np.asarray(rows[NUMBER][:]), keys))
    return parts


def input_columns(task: Task) -> list[str]:
    """Returns the columns of checked rows that the task predicts from."""
    used = task.read_columns()
    return [name for name in task.schema() if name in used and not used[name].label and not used[name].key]


def pair(part: Part, row: int, other: Part, other_row: int, **more: Any) -> dict[str, Any]:
    """Returns a row with the one it resembles, as a JSON object."""
    like = {f"like_{name}": value for name, value in other.place(other_row).items()}
    return {**part.place(row), **like, **more}


UNEVEN = 3.0
"""Labels are uneven if the most frequent one has at least this many times the rows of the least frequent one."""


def label_findings(found: RowFindings) -> Iterator[Finding]:
    """Yields the findings about the labels of the training rows."""
    counts = found.labels.get("train", {})
    present = {name: count for name, count in counts.items() if count}
    if len(present) > 1:
        yield from _imbalance(present)
    if alike := near_equal(counts):
        groups = "; ".join(", ".join(f"{name!r} ({counts[name]:,})" for name in group) for group in alike)
        labels = sum(map(len, alike))
        yield Finding("similar_labels", labels, f"{labels} labels differ only in spelling: {groups}.",
                      details={"groups": [list(group) for group in alike]})  # fmt: skip
    if rare := {name: count for name, count in counts.items() if count < FEW_EXAMPLES}:
        said = f"{counted(len(rare), 'label')} with fewer than {FEW_EXAMPLES} training rows: {listed(rare)}."
        yield Finding("rare_labels", len(rare), said, details={"labels": rare})
    for name, counted_labels in found.labels.items():
        if name == "train":
            continue
        if gone := [label for label, count in counts.items() if count and not counted_labels.get(label)]:
            said = f"{counted(len(gone), 'label')} without any {name} row: {', '.join(gone)}."
            yield Finding("unseen_labels", len(gone), said, details={"labels": gone, "split": name})


def _imbalance(counts: Mapping[str, int]) -> Iterator[Finding]:
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    ratio, share = counts[most] / counts[least], counts[most] / sum(counts.values())
    if ratio >= UNEVEN:
        said = (
            f"{most!r} has {counts[most]:,} training rows ({share:.0%}), {ratio:.3g} times as many as {least!r} "
            f"({counts[least]:,})."
        )
        yield Finding("imbalance", len(counts), said, details={"ratio": ratio, "most": most, "least": least})


MOSTLY = 0.5


def column_findings(profile: Profile, roles: Mapping[str, str]) -> Iterator[Finding]:
    """Yields a finding for each column of the training file without information; `roles` says what columns are."""
    for column in profile.columns.values():
        use = f"used as {roles[column.name]}" if column.name in roles else "which the task does not use"
        details: dict[str, Any] = {"column": column.name, "used_as": roles.get(column.name)}
        of = "" if profile.sampled == profile.total else f" of {profile.sampled:,} evenly spaced rows"
        if not column.values:
            yield Finding("empty_columns", 1, f"Column {column.name!r}, {use}, is empty.", details=details)
        elif len(column.counts) == 1 and len(column.values) > 1:
            said = f"Column {column.name!r}, {use}, has the same value in all {len(column.values):,} rows{of}."
            yield Finding("constant_columns", 1, said, details=details)
        elif column.empty > MOSTLY * profile.sampled:
            said = f"Column {column.name!r}, {use}, is empty in {column.empty:,} of {profile.sampled:,} rows."
            yield Finding("empty_columns", 1, said, details={**details, "empty": column.empty})


def described(profile: Profile, roles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the columns as JSON objects."""
    return [
        {"name": column.name, "used_as": roles.get(column.name), "type": column.kind, "empty": column.empty,
         "different": len(column.counts)}
        for column in profile.columns.values()
    ]  # fmt: skip

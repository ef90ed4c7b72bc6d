"""The rows of each split with their places in the files, and the findings about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.task import Task
from toolkit.data.columns import used_columns
from toolkit.data.keys import Keys
from toolkit.data.loading import CheckedRows
from toolkit.data.table import NUMBER

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Part:
    """The rows of a split.

    Args:
        name: name of the split.
        file: their file, for messages.
        rows: the checked rows.
        numbers: `[rows]` number of each row in its file.
        keys: digests of the rows.
    """

    name: str
    file: str
    rows: datasets.Dataset
    numbers: np.ndarray
    keys: Keys

    def place(self, row: int) -> dict[str, Any]:
        """Returns where a row is, as a JSON object."""
        return {"split": self.name, "file": self.file, "row": int(self.numbers[row])}


@dataclass(frozen=True)
class Finding:
    """Something that may be wrong.

    Args:
        kind: what it is, one of the keys of `toolkit.lab.doctor.report.TITLES`.
        count: how many rows, columns, labels or groups it is about.
        message: a sentence about it, with the number.
        rows: the rows, the most important ones first: `split`, `file`, `row`, and what is said about it.
        details: further JSON values.
    """

    kind: str
    count: int
    message: str
    rows: Sequence[Mapping[str, Any]] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def parts_of(checked: CheckedRows) -> list[Part]:
    """Returns the splits of a run, those first that rows are compared with: training, validation, test."""
    parts = []
    for name, rows in checked.splits.items():
        table = checked.tables[name if name in checked.tables else "train"]
        numbers, every = np.asarray(rows[NUMBER][:]), np.asarray(table.rows[NUMBER][:])
        parts.append(Part(name, table.source, rows, numbers, table.keys.select(np.searchsorted(every, numbers))))
    return parts


def input_columns(task: Task) -> list[str]:
    """Returns the columns of checked rows that the task predicts from."""
    used = used_columns(task)
    return [name for name in task.schema() if name in used and not used[name].label and not used[name].key]


def pair(part: Part, row: int, other: Part, other_row: int, **more: Any) -> dict[str, Any]:
    """Returns a row with the row that it is like, as a JSON object."""
    like = {f"like_{name}": value for name, value in other.place(other_row).items()}
    return {**part.place(row), **like, **more}

"""Rows passed as Python objects: checked like the rows of a file, and never cached on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.data.bad_rows import exclusions, listing
from toolkit.data.checking import RowSource, checked_features, checked_rows
from toolkit.data.readers.arrow import ARROW_BATCH_ROWS, arrow_rows
from toolkit.data.readers.raw import RawRow, check_names, checked
from toolkit.data.reading import RECOGNISED, Reading
from toolkit.data.table import Table, split_bad

NAME = "rows"
"""The name of these rows in messages."""


def given_table(
    rows: Any, task: Task, columns: Mapping[str, str], labelled: bool, reading: Reading = RECOGNISED
) -> Table:
    """Checks rows that are passed as Python objects.

    Args:
        rows: a list of dictionaries, a `datasets.Dataset`, or a pandas data frame, whose missing values become None
            and whose index is ignored.
        task: the task, which defines the columns and checks rows.
        columns: maps the toolkit's column names to those of the rows; columns not listed keep their names.
        labelled: whether label columns are needed; otherwise they are None.
        reading: whether HTML entities are decoded.

    Returns:
        The checked rows.

    Raises:
        DataError: if any row cannot be used (rows are numbered from 1), the task's options exclude all of them, or a
            column is missing.
    """
    table = read_given(rows, task, columns, labelled, reading)
    if table.bad:
        reasons = listing([(NAME, row) for row in table.bad])
        total = len(table.rows) + len(table.bad) + sum(table.excluded.values())
        raise DataError(f"{len(table.bad)} of {total} rows cannot be used:\n{reasons}")
    if table.excluded and not len(table.rows):
        raise DataError(f"no row can be used: {'; '.join(exclusions(table))}")
    return table


def read_given(
    rows: Any, task: Task, columns: Mapping[str, str], labelled: bool, reading: Reading = RECOGNISED
) -> Table:
    """Checks rows as `given_table` does, and returns those that cannot be used in `Table.bad`.

    Raises:
        DataError: if there are no rows, or a column is missing.
    """
    import datasets

    source = RowSource(NAME, "", "python", False, lambda: _raw_rows(rows, reading), Path().absolute())
    every = list(checked_rows(source, task, columns, labelled))
    return split_bad(datasets.Dataset.from_list(every, features=checked_features(task)), source)


def _raw_rows(rows: Any, reading: Reading) -> Iterator[RawRow]:
    import datasets

    if isinstance(rows, datasets.Dataset):
        batches = rows.with_format("arrow").iter(batch_size=ARROW_BATCH_ROWS)
        return checked(arrow_rows(batches, rows.features), NAME, reading.unescape_html)
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas is never imported here
        check_names(Path(NAME), [str(name) for name in rows.columns])
        rows = rows.astype(object).where(rows.notna(), None).to_dict("records")
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise DataError(
            f"{NAME}: received {type(rows).__name__}, expected a list of dictionaries, a datasets.Dataset or a pandas "
            "data frame (for the rows of a file, use `toolkit predict` or `toolkit evaluate`)"
        )
    return checked((_raw_row(number, row) for number, row in enumerate(rows, start=1)), NAME, reading.unescape_html)


def _raw_row(number: int, row: Any) -> RawRow:
    if not isinstance(row, Mapping):
        return RawRow(number, None, f"expected a dictionary, received {type(row).__name__}")
    return RawRow(number, {str(name): _plain(value) for name, value in row.items()})


def _plain(value: Any) -> Any:
    """Returns a NumPy number as a Python number, and any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value

"""Checks raw rows one by one: yields them in the form of the cache, each with what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import BadRow, ExcludedRow, Row
from toolkit.api.task import Task
from toolkit.data.columns import is_needed, is_ragged, require_present, used_columns
from toolkit.data.keys import GROUP, INPUTS, LABEL, row_keys
from toolkit.data.media.files import reference
from toolkit.data.readers.raw import RawRow, preview

if TYPE_CHECKING:
    import datasets

NUMBER = "_number"
"""Column of a table: the number of the row in its file."""
PEEKED_ROWS = 100
REASON, PREVIEW, EXCLUDED = "_reason", "_preview", "_excluded"
"""Columns of the cache with what is wrong with a row."""


@dataclass(frozen=True)
class RowSource:
    """A stream of raw rows, and its key in the cache."""

    name: str
    fingerprint: str
    kind: str
    large: bool
    read: Callable[[], Iterator[RawRow]]
    folder: Path
    """The folder that relative paths in the rows start from."""
    group: str | None = None
    """The column, by its name in the source, whose equal values make a group."""
    copies: Path | None = None
    """The folder with copies of files (see `toolkit.data.media.files.reference`)."""
    digest: Callable[[], str] | None = None
    """Returns the fingerprint of what is there now; None if it cannot change."""


def checked_features(task: Task) -> datasets.Features:
    """Returns the `datasets` feature types of the rows of `checked_rows`."""
    import datasets

    text, number = datasets.Value("string"), datasets.Value("int64")
    digests = dict.fromkeys((INPUTS, LABEL, GROUP), number)
    found = {REASON: text, PREVIEW: text, EXCLUDED: datasets.Value("bool")}
    return datasets.Features({**task.schema(), NUMBER: number, **found, **digests})


def checked_rows(source: RowSource, task: Task, columns: Mapping[str, str], labelled: bool) -> Iterator[dict[str, Any]]:
    """Yields every row, usable or not, in the form of the cache; raises DataError as `load_table`."""
    raw = source.read()
    first = list(islice(raw, PEEKED_ROWS))
    every = source.read if is_ragged(source.name) else None
    require_present(source.name, first, every, task, columns, labelled, source.group)
    names, no_keys = list(task.schema()), dict.fromkeys((INPUTS, LABEL, GROUP), 0)
    for row in chain(first, raw):
        try:
            checked = check_raw(row, task, columns, labelled, source.folder, source.copies)
        except BadRow as bad:
            excluded = isinstance(bad, ExcludedRow)
            found = {REASON: str(bad), PREVIEW: preview(row.values), EXCLUDED: excluded}
            yield {**dict.fromkeys(names), NUMBER: row.number, **found, **no_keys}
        else:
            own = {name: checked[name] for name in names}
            group = (row.values or {}).get(source.group) if source.group else None
            keys = row_keys(own, task, group) if labelled else no_keys
            yield {**own, NUMBER: row.number, REASON: None, PREVIEW: None, EXCLUDED: False, **keys}


def check_raw(
    raw: RawRow, task: Task, columns: Mapping[str, str], labelled: bool, folder: Path, copies: Path | None = None
) -> Row:
    """Returns a raw row as the task's checked row.

    Args:
        raw: a row of a reader.
        task: the task, which defines the columns and checks rows.
        columns: maps the toolkit's column names to the source's.
        labelled: whether label columns are needed.
        folder: the folder that relative paths in the row start from.
        copies: as for `load_table`.

    Raises:
        BadRow: with the reason, if the row cannot be used, or the task's options exclude it.
    """
    if raw.reason or raw.values is None:
        raise BadRow(raw.reason)
    row: Row = {}
    for name, column in used_columns(task).items():
        value = raw.values.get(columns.get(name, name)) if labelled or not column.label else None
        if is_needed(column, labelled) and (value is None or (isinstance(value, str) and not value.strip())):
            raise BadRow(f"column {columns.get(name, name)!r} is empty")
        row[name] = reference(value, folder, raw.number, copies) if column.file and value is not None else value
    return task.check_row(row, labelled)

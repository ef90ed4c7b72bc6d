"""The inputs of `toolkit predict`: files, folders and single texts, checked, and reread while answers are written."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from toolkit.api.batch import EvalData
from toolkit.api.task import Task
from toolkit.base.console import say
from toolkit.base.errors import DataError, InputError
from toolkit.base.files import expanded
from toolkit.config.fields import Column
from toolkit.config.messages import join
from toolkit.config.paths import sheet_of
from toolkit.data.columns import LONG_NAME, columns_of, used_columns
from toolkit.data.readers import RawRow
from toolkit.data.readers.delimited import recognise
from toolkit.data.readers.encodings import UTF_8
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import is_files, read_rows
from toolkit.data.table import PEEKED_ROWS, Table, given_table, listing, load_table
from toolkit.data.tokenise import tokenise
from toolkit.deploy.trained import TrainedRun
from toolkit.system.rank_order import local_main_first


@dataclass(frozen=True)
class Input:
    """Rows to predict.

    Args:
        name: the file or folder, for messages.
        table: the checked rows.
        read: returns the rows as they are in the file, in the same order.
        style: the delimiter of answers written as CSV, and whether they begin with a byte order mark: as the file, and
            if it is in another encoding or from Excel.
    """

    name: str
    table: Table
    read: Callable[[], Iterator[RawRow]]
    style: tuple[str, bool] = (",", False)

    def rows(self) -> Iterator[tuple[RawRow, str | None]]:
        """Yields every row as it is in the file, and why it cannot be predicted, or None."""
        reasons = {row.number: row.reason for row in self.table.bad}
        return ((raw, reasons.get(raw.number)) for raw in self.read())


def file_inputs(run: TrainedRun, files: Sequence[str]) -> list[Input]:
    """Reads and checks files and folders; the first process of each node reads, the others use its cache.

    Raises:
        DataError: if one cannot be read, or lacks a column.
    """
    with local_main_first(run.accelerator):
        return [_file_input(run, file) for file in files]


def _file_input(run: TrainedRun, file: str) -> Input:
    reading = Reading.of(run.cfg.data)
    columns = columns_for(file, run.task, run.cfg.data.columns, reading)
    table = load_table(file, run.task, columns, labelled=False, reading=reading)
    as_they_are = replace(reading, unescape_html=False)
    return Input(file, table, partial(read_rows, file, as_they_are, labelled=False), _style(file, reading))


def _style(file: str, reading: Reading) -> tuple[str, bool]:
    path = expanded(sheet_of(file)[0])
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv"):
        return ",", suffix == ".xlsx"
    found = recognise(path, reading)
    with path.open("rb") as opened:
        mark = opened.read(3) == codecs.BOM_UTF8
    return (found.delimiter or "," if suffix == ".csv" else ","), mark or found.encoding != UTF_8


def columns_for(file: str, task: Task, columns: Mapping[str, str], reading: Reading) -> Mapping[str, str]:
    """Returns `data.columns` for a file without labels, whose only column is the task's only input.

    Raises:
        DataError: if the file cannot be read.
    """
    inputs = needed_columns(task)
    present = columns_of(islice(read_rows(file, reading, labelled=False), PEEKED_ROWS))
    if is_files(file) or len(present) != 1 or len(inputs) != 1 or len(present[0]) > LONG_NAME:
        return columns
    ((name, column),) = inputs.items()
    if present[0] not in (name, columns.get(name)):
        say(f"{file}: its only column, {present[0]!r}, is read as {name!r} ({column.help})")
    return {**columns, name: present[0]}


def needed_columns(task: Task) -> dict[str, Column]:
    """Returns the columns that a row needs for a prediction; of several that may replace each other, the first."""
    given = {name: column for name, column in used_columns(task).items() if not column.label}
    required = {name: column for name, column in given.items() if column.required}
    return required or dict(islice(given.items(), 1))


def text_input(run: TrainedRun, texts: Sequence[str]) -> Input:
    """Returns the rows of `--input-text`.

    Args:
        run: the finished run.
        texts: texts for a task with one input column; otherwise `column=text`; a repeated column begins a new
            row.

    Raises:
        InputError: if the task reads files, or a column is unknown or missing.
        DataError: if a text cannot be used.
    """
    inputs = needed_columns(run.task)
    if any(column.file for column in inputs.values()):
        raise InputError("--input-text: this run reads files; name them with --input")
    rows = [{name: text} for text in texts for name in inputs] if len(inputs) == 1 else _pairs(texts, list(inputs))
    table = given_table(rows, run.task, {}, labelled=False, reading=Reading.of(run.cfg.data))
    return Input("--input-text", table, lambda: (RawRow(number, row) for number, row in enumerate(rows, start=1)))


def _pairs(texts: Sequence[str], names: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for given in texts:
        name, equals, text = given.partition("=")
        if name not in names or not equals:
            example = " ".join(f'--input-text {each}="..."' for each in names)
            raise InputError(f"--input-text: received {given!r}, but a row has {join(names, 'and')}: {example}")
        if not rows or name in rows[-1]:
            rows.append({})
        rows[-1][name] = text
    for row in rows:
        if missing := [name for name in names if name not in row]:
            raise InputError(f"--input-text: {join(list(row), 'and')} without {join(missing, 'and')}")
    return rows


def joined(run: TrainedRun, inputs: Sequence[Input]) -> EvalData:
    """Returns the usable rows of all inputs, preprocessed.

    Raises:
        DataError: if there are none.
    """
    import datasets

    parts = [each.table.rows for each in inputs if len(each.table.rows)]
    if not parts:
        bad = [(each.name, row) for each in inputs for row in each.table.bad]
        raise DataError(f"none of the {len(bad)} rows can be used:\n{listing(bad)}")
    rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    with local_main_first(run.accelerator):
        return EvalData(rows, tokenise(rows, run.task, run.processor, labelled=False), run.processor)

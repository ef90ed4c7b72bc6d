"""Writers of tables: CSV, TSV, Excel, JSON lines, Parquet and NumPy, chosen by the suffix of the file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import DataError, InputError
from toolkit.base.files import temporary_file, written_whole
from toolkit.config.messages import join

if TYPE_CHECKING:
    import pyarrow as pa

OutputRow = Mapping[str, Any]
NESTED = (".jsonl", ".parquet", ".npy")
"""Suffixes of formats whose cells may be lists and mappings."""
BATCH_ROWS = 1000
EXCEL_ROWS, EXCEL_CHARS = 2**20, 2**15 - 1
"""Maximum number of rows of a sheet, with the header, and of characters of a cell."""


@dataclass(frozen=True)
class OutputTable:
    """Rows to write."""

    columns: Sequence[str]  # names of the columns, in order; a row may lack some of them
    rows: Callable[[], Iterator[OutputRow]]  # returns an iterator over the rows; called once for every pass
    delimiter: str = ","  # separator of a .csv file
    byte_order_mark: bool = False  # whether a .csv or .tsv file begins with one, by which Excel recognises UTF-8


def check_format(path: Path) -> None:
    """Raises InputError if tables cannot be written to a file of this name: unknown suffix, or missing library."""
    if path.suffix.lower() not in WRITERS:
        received = f"received {path.name!r}, which has an unsupported format"
        raise InputError(f"--output: {received}; expected a name that ends in {join(list(WRITERS))}")
    if path.suffix.lower() == ".xlsx" and find_spec("openpyxl") is None:
        raise InputError(
            "--output: .xlsx needs openpyxl: install the extra `excel` (pip install 'finetune-toolkit[excel]'), "
            "or write .csv"
        )


def write_table(path: Path, table: OutputTable) -> None:
    """Writes a table atomically, in the format of the suffix; raises DataError if an Excel sheet cannot hold it."""
    WRITERS[path.suffix.lower()](path, table)


def check_excel(rows: Iterable[OutputRow]) -> None:
    """Raises DataError if an Excel sheet cannot hold the rows: too many, or a cell is too long."""
    for number, row in enumerate(rows, start=1):
        if number >= EXCEL_ROWS:
            raise DataError(f"an Excel sheet holds at most {EXCEL_ROWS - 1:,} rows; write .csv or .parquet instead")
        for column, value in row.items():
            _excel_text(value, number, column)


def flat(value: Any) -> str:
    """Returns a value as the text of a cell: None is empty, names are joined by commas, other lists are JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and value and all(isinstance(part, str) and "," not in part for part in value):
        return ",".join(value)
    if isinstance(value, list | Mapping):
        return _json(value) if value else ""
    return value if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _write_delimited(path: Path, table: OutputTable) -> None:
    line = io.StringIO(newline="")
    # Only with this terminator does the library quote carriage returns in Python 3.11 and 3.12.
    delimiter = "\t" if path.suffix.lower() == ".tsv" else table.delimiter
    writer = csv.writer(line, delimiter=delimiter, lineterminator="\r\n")
    with written_whole(path) as file:
        file.write("\ufeff" if table.byte_order_mark else "")
        for values in _cells(table):
            writer.writerow(values)
            file.write(line.getvalue().removesuffix("\r\n") + "\n")
            line.seek(0)
            line.truncate()


def _cells(table: OutputTable) -> Iterator[list[str]]:
    yield list(table.columns)
    for row in table.rows():
        yield [flat(row.get(column)) for column in table.columns]


def _write_jsonl(path: Path, table: OutputTable) -> None:
    with written_whole(path) as file:
        for row in table.rows():
            file.write(_json({column: row[column] for column in table.columns if column in row}) + "\n")


def _write_excel(path: Path, table: OutputTable) -> None:
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet("predictions")

    def cell(value: Any, number: int, column: str) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        made = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("", _excel_text(value, number, column)) or None)
        made.data_type = "s" if made.value else "n"  # text that begins with = is not a formula
        return made

    try:
        sheet.append([cell(column, 0, column) for column in table.columns])
        for number, row in enumerate(table.rows(), start=1):
            sheet.append([cell(row.get(column), number, column) for column in table.columns])
    finally:
        sheet.close()
    with temporary_file(path) as temporary, temporary.open("wb") as file:
        book.save(file)


def _excel_text(value: Any, number: int, column: str) -> str:
    text = flat(value)
    if len(text) > EXCEL_CHARS:
        raise DataError(
            f"row {number}, column {column!r}: {len(text):,} characters, but an Excel cell holds at most "
            f"{EXCEL_CHARS:,}; write .csv instead"
        )
    return text


def _write_parquet(path: Path, table: OutputTable) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(table)
    with temporary_file(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for batch in _batches(table):
            arrays = [_array(batch[field.name], field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _batches(table: OutputTable) -> Iterator[dict[str, list[Any]]]:
    rows = table.rows()
    while batch := list(islice(rows, BATCH_ROWS)):
        yield {column: [row.get(column) for row in batch] for column in table.columns}


def _schema(table: OutputTable) -> pa.Schema:
    """Returns the narrowest types that hold all values; a column of several kinds of values becomes text."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = dict.fromkeys(table.columns, pa.null())
    for batch in _batches(table):
        types |= {column: _joined(types[column], values) for column, values in batch.items()}
    return pa.schema([(name, pa.string() if kind == pa.null() else kind) for name, kind in types.items()])


def _joined(kind: pa.DataType, values: list[Any]) -> pa.DataType:
    import pyarrow as pa

    try:
        fields = [pa.schema([("", each)]) for each in (kind, pa.array(values).type)]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if kind == pa.string():
        values = [None if value is None else flat(value) for value in values]
    return pa.array(values, kind)


def _write_numpy(path: Path, table: OutputTable) -> None:
    """Writes the column of embeddings as float32 `[rows, size]`, NaN for rows without one."""
    import numpy as np

    first = next((row for row in table.rows() if any(map(_is_vector, row.values()))), None)
    if first is None:
        raise DataError(f"{path.name}: a .npy file holds embeddings, and these answers have none; write .csv")
    name, vector = next((column, value) for column, value in first.items() if _is_vector(value))
    empty = [float("nan")] * len(vector)
    with temporary_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, np.array([row.get(name) or empty for row in table.rows()], dtype=np.float32))


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], float)


WRITERS: dict[str, Callable[[Path, OutputTable], None]] = {
    ".csv": _write_delimited,
    ".tsv": _write_delimited,
    ".xlsx": _write_excel,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
    ".npy": _write_numpy,
}
"""Writer by file suffix."""

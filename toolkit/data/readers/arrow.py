"""Arrow data: parquet files, Arrow IPC files and streams, datasets of the Hub, and rows that are Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import DataError
from toolkit.data.readers.raw import RawRow, Reading, check_names, checked

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_BATCH_ROWS = 1000
_IPC = b"ARROW1"
"""How an Arrow IPC file begins; a stream does not."""


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of a parquet file, numbered from 1, with class names instead of class numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            features = _features(file, opened.schema_arrow)
            yield from arrow_rows(opened.iter_batches(batch_size=ARROW_BATCH_ROWS), features)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last for names of columns
        raise DataError(f"{file} is not a valid parquet file: {error}") from error


def read_ipc(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of an Arrow IPC file or stream (Feather version 2, the files of `datasets`), as `read` does."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(file)) as opened:  # not mapped: a file that is cut meanwhile would end the process
            is_stream = opened.read(len(_IPC)) != _IPC
            opened.seek(0)
            with (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(opened) as content:
                numbers = range(0 if is_stream else content.num_record_batches)
                batches = content if is_stream else (content.get_batch(number) for number in numbers)
                yield from arrow_rows(_sound(batches), _features(file, content.schema))
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError) as error:
        raise DataError(f"{file} is not a valid Arrow file or stream: {error}") from error


def _sound(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields small parts of batches whose offsets and indices stay within them; raises ArrowInvalid for others."""
    for batch in batches:
        for column in batch.columns:
            _validate(column)
        for start in range(0, batch.num_rows, ARROW_BATCH_ROWS):
            yield batch.slice(start, ARROW_BATCH_ROWS)


def _validate(column: pa.Array) -> None:
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        bytes_of = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
        if column.type not in bytes_of or "UTF8" not in str(error):
            raise
        column.view(bytes_of[column.type]).validate(full=True)  # rows that are not UTF-8 are bad rows


def _features(file: Path, schema: pa.Schema) -> Mapping[str, Any]:
    """Returns the features of `datasets` that a file describes, if it does; raises DataError if they are not valid."""
    import datasets

    check_names(file, schema.names)
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    try:
        return datasets.Features.from_arrow_schema(schema)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: its description of columns for `datasets` is not valid: {error!r}") from error


def arrow_rows(batches: Iterable[pa.RecordBatch | pa.Table], features: Mapping[str, Any]) -> Iterator[RawRow]:
    """Streams the rows of Arrow batches, numbered from 1, with class names instead of class numbers."""
    import datasets

    # The values of a column, or those of its lists, may be numbers of classes.
    inner = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    labels = {name: feature.names for name, feature in inner.items() if isinstance(feature, datasets.ClassLabel)}
    numbers = count(1)
    for batch in batches:
        for values in _python_rows(batch):
            if isinstance(values, str):
                yield RawRow(next(numbers), None, values)
                continue
            for name, names in labels.items():
                values[name] = _class_names(values[name], names)
            yield RawRow(next(numbers), values)


def _class_names(label: Any, names: Sequence[str]) -> Any:
    """Returns the names of one or several class numbers; None for -1, which marks rows without a label."""
    if isinstance(label, list):
        return [_class_names(each, names) for each in label]
    if label is None or label >= len(names):
        return label
    return names[label] if label >= 0 else None


def _python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any] | str]:
    """Returns the rows of a batch; a row that is not UTF-8 text is replaced by the reason."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            return [f"not UTF-8 text (byte 0x{error.object[error.start]:02x} at byte {error.start + 1})"]
        return [row for index in range(batch.num_rows) for row in _python_rows(batch.slice(index, 1))]


def python_rows(rows: Any, name: str, reading: Reading) -> Iterator[RawRow]:
    """Yields rows that are passed as a list of dictionaries, a `datasets.Dataset` or a pandas data frame.

    Raises DataError if they are anything else, or the names of their columns cannot be used.
    """
    import datasets

    if isinstance(rows, datasets.Dataset):
        batches = rows.with_format("arrow").iter(batch_size=ARROW_BATCH_ROWS)
        return checked(arrow_rows(batches, rows.features), name, reading)
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas is never imported here
        check_names(Path(name), [str(name) for name in rows.columns])
        rows = rows.astype(object).where(rows.notna(), None).to_dict("records")
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise DataError(
            f"{name}: received {type(rows).__name__}, expected a list of dictionaries, a datasets.Dataset or a pandas "
            "data frame (for the rows of a file, use `toolkit predict` or `toolkit evaluate`)"
        )
    return checked((_raw_row(number, row) for number, row in enumerate(rows, start=1)), name, reading)


def _raw_row(number: int, row: Any) -> RawRow:
    if not isinstance(row, Mapping):
        return RawRow(number, None, f"expected a dictionary, received {type(row).__name__}")
    return RawRow(number, {str(name): _plain(value) for name, value in row.items()})


def _plain(value: Any) -> Any:
    """Returns a NumPy number as a Python number, and any other value unchanged."""
    import numpy as np

    return value.item() if isinstance(value, np.generic) else value

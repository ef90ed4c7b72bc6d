"""Arrow data: parquet files, and datasets of the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import DataError
from toolkit.data.readers.raw import RawRow, check_names
from toolkit.data.reading import Reading

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_BATCH_ROWS = 1000


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of a file, numbered from 1, with class names instead of class numbers.

    Raises:
        DataError: if the file is not valid, or a column has no name.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            schema = opened.schema_arrow
            check_names(file, schema.names)
            typed = b"huggingface" in (schema.metadata or {})
            features = datasets.Features.from_arrow_schema(schema) if typed else {}
            yield from arrow_rows(opened.iter_batches(batch_size=ARROW_BATCH_ROWS), features)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a valid parquet file: {error}") from error


def arrow_rows(batches: Iterable[pa.RecordBatch | pa.Table], features: Mapping[str, Any]) -> Iterator[RawRow]:
    """Streams the rows of Arrow batches, numbered from 1, with class names instead of class numbers."""
    import datasets

    labels = {name: feature.names for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)}
    numbers = count(1)
    for batch in batches:
        for values in _python_rows(batch):
            if isinstance(values, str):
                yield RawRow(next(numbers), None, values)
                continue
            for name, names in labels.items():
                label = values[name]
                if label is not None and label < len(names):
                    values[name] = names[label] if label >= 0 else None  # -1: not labelled
            yield RawRow(next(numbers), values)


def _python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any] | str]:
    """Returns the rows of a batch; a row that is not UTF-8 text is replaced by the reason."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            return [f"not UTF-8 text (byte 0x{error.object[error.start]:02x} at byte {error.start + 1})"]
        return [row for index in range(batch.num_rows) for row in _python_rows(batch.slice(index, 1))]

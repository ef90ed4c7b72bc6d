"""Sources of rows: reads a local file or a hub dataset as a stream of numbered raw rows.

An unusable row stays in the stream, with the reason; a source that cannot be read at all is a `DataError`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import DataError
from toolkit.catalog.entries import command_for
from toolkit.config.paths import aligned_files
from toolkit.data.aligned import read_aligned
from toolkit.data.conll import read_conll
from toolkit.data.files import folder_digest, read_folder
from toolkit.data.readers import TEXT_READERS, RawRow, check_names, not_text

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

ARROW_BATCH_ROWS = 1000
SNIFFED_BYTES = 2**16


def read_rows(path: str | Path) -> Iterator[RawRow]:
    """Streams the rows of a local file, whose suffix determines the format, or of a folder of classes.

    Only .json files are read into memory completely. A name like `train.{en,de}` means line-aligned text files, see
    `toolkit.data.aligned`.

    Raises:
        DataError: if the file is missing, has an unknown format or another encoding than UTF-8, or has no rows.
    """
    if aligned := aligned_files(str(path)):
        files = {column: _existing(name) for column, name in aligned.items()}
        for file in files.values():
            _refuse_other_encodings(file)
        return checked(read_aligned(files), str(path))
    file = _existing(path)
    if file.is_dir():
        return checked(read_folder(file), str(path))
    read = READERS.get(file.suffix.lower())
    if read is None:
        raise DataError(
            f"{path}: files that end in {file.suffix or 'nothing'!r} cannot be read; use one of {', '.join(READERS)}."
        )
    if file.suffix.lower() != ".parquet":
        _refuse_other_encodings(file)
    return checked(read(file), str(path))


def fingerprint(path: str | Path) -> str:
    """Returns the sha256 of a file's bytes, or of the names in a folder, in hexadecimal.

    For aligned files it is the sha256 of their concatenated fingerprints.

    Raises:
        DataError: if the file does not exist or cannot be opened.
    """
    if aligned := aligned_files(str(path)):
        return hashlib.sha256("".join(map(fingerprint, aligned.values())).encode()).hexdigest()
    source = _existing(path)
    if source.is_dir():
        return folder_digest(source)
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def num_bytes(path: str | Path) -> int:
    """Returns the size of a file in bytes, or the total size of aligned files.

    Raises:
        DataError: if the file does not exist or cannot be opened.
    """
    return sum(_existing(name).stat().st_size for name in aligned_files(str(path)).values() or [path])


def load_hub(
    dataset_name: str, config: str | None = None, revision: str | None = None, cache_dir: str | Path | None = None
) -> datasets.DatasetDict:
    """Loads all splits of a hub dataset, or of a local folder with the layout of one.

    Args:
        dataset_name: hub id or folder.
        config: configuration of the dataset; None means its default.
        revision: branch, tag or commit; None means `main`.
        cache_dir: folder of the cache; None means that of `datasets`.

    Raises:
        DataError: if the dataset cannot be found or downloaded.
    """
    import datasets

    with _hub_errors(dataset_name, config, revision, cache_dir):
        return datasets.load_dataset(
            dataset_name, config, revision=revision, cache_dir=str(cache_dir) if cache_dir else None
        )


def find_hub(dataset_name: str, config: str | None = None, revision: str | None = None) -> None:
    """Checks that a hub dataset, or a local folder with the layout of one, exists, without loading its rows.

    Raises:
        DataError: if the dataset cannot be found.
    """
    import datasets

    with _hub_errors(dataset_name, config, revision, None):
        datasets.load_dataset_builder(dataset_name, config, revision=revision)


@contextmanager
def _hub_errors(
    dataset_name: str, config: str | None, revision: str | None, cache_dir: str | Path | None
) -> Iterator[None]:
    import datasets

    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError) as error:
        where = (
            f"the hub was not asked, because HF_HUB_OFFLINE is set; the local cache was "
            f"({cache_dir or datasets.config.HF_DATASETS_CACHE})"
            if datasets.config.HF_HUB_OFFLINE
            else f"the hub was asked ({datasets.config.HF_ENDPOINT})"
        )
        raise DataError(
            f"data.dataset_name: {dataset_name!r} (configuration {config or 'default'}, revision {revision or 'main'}) "
            f"cannot be loaded: {where}. The error was: {error.__cause__ or error}\n"
            "Check the name, load it once with a network connection, or give local files with data.train_file."
        ) from error


def hub_rows(dataset: datasets.Dataset) -> Iterator[RawRow]:
    """Streams the rows of one split, numbered from 1, with class names instead of class numbers.

    Raises:
        DataError: if the split has no rows.
    """
    # Arrow batches instead of Python rows, so that unused audio and images are not decoded.
    batches = dataset.with_format("arrow").iter(batch_size=ARROW_BATCH_ROWS)
    return checked(arrow_rows(batches, dataset.features), f"Split {dataset.split!s} of the dataset")


def _existing(path: str | Path) -> Path:
    file = Path(path).expanduser()
    if not file.exists():
        command = command_for(path)
        raise DataError(
            f"{path} does not exist (tried {file.absolute()}). Relative paths start at the current directory."
            + (f" `{command}` downloads this public dataset." if command else "")
        )
    try:
        list(file.iterdir()) if file.is_dir() else file.open("rb").close()
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror} (tried {file.absolute()}).") from error
    return file


def _refuse_other_encodings(file: Path) -> None:
    with file.open("rb") as opened:
        head = opened.read(SNIFFED_BYTES)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{file} is UTF-16 or UTF-32 text. Save it as UTF-8.")
    # Half of the bytes of ASCII text in UTF-16 are NUL. A single NUL byte is reported with its row.
    if head.count(0) * 10 > len(head):
        raise DataError(
            f"{file} is not UTF-8 text: it has many NUL bytes, like UTF-16 text without a byte-order mark "
            "or a binary file. Save it as UTF-8."
        )


def checked(rows: Iterable[RawRow], where: str) -> Iterator[RawRow]:
    """Yields rows, and adds the reason to those that are not UTF-8 text.

    Args:
        rows: numbered rows.
        where: name of the source, for messages.

    Raises:
        DataError: at the end, if there were no rows.
    """
    number = 0
    for number, values, reason in rows:
        for column, value in (values or {}).items():
            if reason:
                break
            problem = not_text(value)
            reason = problem and f"column {column!r} is {problem}"
        yield RawRow(number, values, reason)
    if not number:
        raise DataError(f"{where} has no rows.")


def _read_parquet(file: Path) -> Iterator[RawRow]:
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


READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    **TEXT_READERS,
    ".conll": read_conll,
    ".parquet": _read_parquet,
}
"""Reader by file suffix."""


def spread(rows: Iterator[RawRow], sample: int | None) -> Iterator[RawRow]:
    """Yields `sample` evenly spaced rows, or all if it is None; in many files the first rows are all of one class."""
    if sample is None:
        yield from rows
        return
    kept: list[RawRow] = []
    stride = 1
    for number, row in enumerate(rows):
        if number % stride == 0:
            kept.append(row)
            if len(kept) > 2 * sample:
                kept, stride = kept[::2], 2 * stride
    count = min(sample, len(kept))
    yield from (kept[place * len(kept) // count] for place in range(count))

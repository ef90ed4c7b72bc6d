"""Sources of rows: local files, folders and hub datasets as streams of numbered raw rows.

An unusable row stays in the stream, with the reason; a source that cannot be read at all is a `DataError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.errors import DataError
from toolkit.base.files import expanded, read_json, sha256
from toolkit.base.offline import DATASET, prepare_download, read_fetched
from toolkit.catalog.entries import command_for
from toolkit.config.paths import (
    COMPRESSED,
    DECOMPRESS,
    HDF5,
    SAVE_SPREADSHEET,
    SPREADSHEETS,
    aligned_files,
    files_of,
    sheet_of,
)
from toolkit.data.media import files
from toolkit.data.readers import arrow, delimited, excel, hdf5, json_rows, plain, tmx
from toolkit.data.readers.arrow import ARROW_BATCH_ROWS, arrow_rows
from toolkit.data.readers.raw import RECOGNISED, Fingerprint, RawRow, Reading, checked

if TYPE_CHECKING:
    import datasets


Source = str | Path | Sequence[str | Path]
"""A data file, a folder, or several image and audio files."""
READERS: dict[str, Callable[[Path, Reading], Iterator[RawRow]]] = {
    ".conll": plain.read,
    ".csv": delimited.read,
    ".tsv": delimited.read,
    ".json": json_rows.read_json,
    ".jsonl": json_rows.read_jsonl,
    ".parquet": arrow.read,
    ".tmx": tmx.read,
    ".txt": plain.read_lines,
    ".xlsx": excel.read,
    **dict.fromkeys((".arrow", ".arrows", ".feather"), arrow.read_ipc),
    **dict.fromkeys(HDF5, hdf5.read),
}
"""Reader by file suffix."""
_NOTES: dict[str, Callable[[Path, Reading], str | None]] = {
    ".csv": delimited.note,
    ".tsv": delimited.note,
    ".tmx": tmx.note,
    ".xlsx": excel.note,
    **dict.fromkeys((".conll", ".json", ".jsonl", ".txt"), plain.note),
}
"""What is said about a file, by its suffix."""


def read_rows(source: Source, reading: Reading = RECOGNISED, labelled: bool = True) -> Iterator[RawRow]:
    """Streams the rows of a source; only .json files are read into memory completely.

    Args:
        source: a file, whose suffix determines the format; a name like `train.{en,de}` for line-aligned text files, or
            like `reviews.xlsx#Sheet2` for a sheet; a folder or an archive of image or audio files; or, without labels,
            one or several paths of such files and folders.
        reading: how to read it.
        labelled: whether the files of a folder or an archive are in folders of classes; otherwise they may be anywhere.

    Raises:
        DataError: if the source is missing, has an unknown format or encoding, or has no rows.
    """
    name = name_of(source)
    return checked(_raw_rows(source, reading, labelled), name, reading)


def _raw_rows(source: Source, reading: Reading, labelled: bool) -> Iterator[RawRow]:
    if not isinstance(source, str | Path):
        return files.read_files([_existing(path) for path in source])
    if aligned := aligned_files(str(source)):
        return plain.read_aligned({column: _existing(name) for column, name in aligned.items()}, reading)
    file = _existing(source)
    if file.is_dir():
        return files.read_folder(file, labelled, reading)
    if files.is_archive(file):
        return files.read_archive(file, labelled, reading)
    suffix = file.suffix.lower()
    if suffix in files.COLUMN_OF and not labelled:
        return files.read_files([file])
    if suffix in files.COLUMN_OF:
        raise DataError(
            f"{source} is a single {files.COLUMN_OF[suffix]} file without a label; expected a folder with "
            "<class>/<file>, or a table (.csv, .jsonl and so on) with paths and labels."
        )
    if suffix not in READERS:
        others = f"use one of {', '.join(READERS)}, or a folder or archive (.tar, .zip) of images or audio files"
        way_out = SAVE_SPREADSHEET if suffix in SPREADSHEETS else DECOMPRESS if suffix in COMPRESSED else others
        raise DataError(f"{source}: unsupported file type {file.suffix!r}; {way_out}.")
    return READERS[suffix](file, _with_sheet(source, reading))


def reading_notes(source: Source, reading: Reading) -> list[str]:
    """Returns one line for each file of a source that is read in another way than its name and the settings say."""
    names = files_of(str(source)) if isinstance(source, str | Path) else source
    usual = plain.note if aligned_files(str(source)) else None
    notes = []
    for file in map(_existing, names):
        note = files.folder_note if file.is_dir() else _NOTES.get(file.suffix.lower(), usual)
        if note is not None and (found := note(file, _with_sheet(source, reading))):
            notes.append(f"{file}: {found}")
    return notes


def _with_sheet(source: Source, reading: Reading) -> Reading:
    return replace(reading, sheet=sheet_of(str(source))[1]) if isinstance(source, str | Path) else reading


def name_of(source: Source) -> str:
    """Returns the name of a source in messages."""
    if isinstance(source, str | Path) or len(source) == 1:
        return str(source if isinstance(source, str | Path) else source[0])
    return f"{source[0]} and {len(source) - 1} more"


def is_files(source: Source) -> bool:
    """Whether the rows of a source are image and audio files themselves: a folder, archive, single file or several."""
    if not isinstance(source, str | Path):
        return True
    path = expanded(source)
    return path.is_dir() or path.suffix.lower() in files.COLUMN_OF or files.is_archive(path)


def folder_of(source: Source) -> Path:
    """Returns the absolute folder that relative paths in the rows of a source start from; an archive is one."""
    if not isinstance(source, str | Path):
        return Path().absolute()
    path = expanded(source)
    if path.is_dir() or files.is_archive(path):
        return path.absolute()
    table = expanded(sheet_of(str(source))[0])
    return (Path() if path.suffix.lower() in files.COLUMN_OF else table.parent).absolute()


def fingerprint(source: Source, how: Fingerprint = "content") -> str:
    """Returns the sha256 of a file's bytes, or of the names in a folder, in hexadecimal.

    For several files it is the sha256 of their concatenated fingerprints; for a sheet, of the file's and the name. With
    `stat`, a file's path, size and time of modification stand for its bytes. Raises DataError if one cannot be opened.
    """
    if not isinstance(source, str | Path):
        return sha256("".join(fingerprint(each, how) for each in source))
    if aligned := aligned_files(str(source)):
        return fingerprint(list(aligned.values()), how)
    file = _existing(source)
    if file.is_dir():
        return files.folder_digest(file, how)
    digest = files.file_digest(file, how)
    sheet = sheet_of(str(source))[1]
    return digest if sheet is None else sha256(f"{digest}#{sheet}")


def place_of(source: Source, copies: Path | None) -> Source:
    """Returns where a source is read: its copy if it has one below `copies`; a folder is listed where it is."""
    if copies is None or not isinstance(source, str | Path) or expanded(source).is_dir():
        return source
    copy = str(files.copy_of(expanded(source), copies))
    return copy if all(Path(file).exists() for file in files_of(copy)) else source


def num_bytes(source: Source) -> int:
    """Returns the size in bytes of a file, of several, or of a folder; raises DataError if one does not exist."""
    names = files_of(str(source)) if isinstance(source, str | Path) else source
    return sum(file.lstat().st_size for path in map(_existing, names) for file in (path, *path.rglob("*")))


def _existing(path: str | Path) -> Path:
    file = expanded(sheet_of(str(path))[0])
    if not file.exists():
        command = command_for(path)
        raise DataError(
            f"{path} does not exist (tried {file.absolute()}). Relative paths start at the current directory."
            + (f" `{command}` downloads this public dataset." if command else "")
        )
    if not file.is_file() and not file.is_dir():
        raise DataError(f"{path} is neither a file nor a folder, but a pipe or a device (tried {file.absolute()}).")
    try:
        list(file.iterdir()) if file.is_dir() else file.open("rb").close()
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror} (tried {file.absolute()}).") from error
    return file


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


SPLITS = "splits.json"
"""File with the fingerprint of each split of a fetched dataset, in order; a split is in a subfolder of its name."""


def load_hub(
    dataset_name: str,
    config: str | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline_dir: str | None = None,
) -> datasets.DatasetDict:
    """Loads all splits of a hub dataset, or of a local folder with the layout of one.

    The rows of a fetched folder have the fingerprints that they had when they were fetched.

    Args:
        dataset_name: hub id or folder.
        config: configuration of the dataset; None means its default.
        revision: branch, tag or commit; None means `main`.
        cache_dir: folder of the cache; None means that of `datasets`.
        offline_dir: folder of `toolkit fetch`, which is read if it has the dataset; None if there is none.

    Raises:
        DataError: if the dataset cannot be found or downloaded.
        InputError: if `offline_dir` cannot be used.
    """
    import datasets

    if (folder := _fetched(dataset_name, config, revision, offline_dir)) is not None:
        return datasets.DatasetDict(_read_splits(folder))
    with _hub_errors(dataset_name, config, revision, cache_dir):
        cache = str(cache_dir) if cache_dir else None
        return datasets.load_dataset(dataset_name, config, revision=revision, cache_dir=cache)


def find_hub(
    dataset_name: str, config: str | None = None, revision: str | None = None, offline_dir: str | None = None
) -> None:
    """Raises DataError if a hub dataset, or a local folder with the layout of one, does not exist; loads no rows."""
    import datasets

    if _fetched(dataset_name, config, revision, offline_dir) is not None:
        return
    with _hub_errors(dataset_name, config, revision, None):
        datasets.load_dataset_builder(dataset_name, config, revision=revision)


def _fetched(dataset_name: str, config: str | None, revision: str | None, offline_dir: str | None) -> Path | None:
    """Returns the folder in which a fetched folder has the dataset, if there is one."""
    if offline_dir is None:
        return None
    return read_fetched(offline_dir).find(DATASET, dataset_name, revision, config)


def _read_splits(folder: Path) -> dict[str, datasets.Dataset]:
    import datasets

    splits = {}
    for split, fingerprint in read_json(folder / SPLITS).items():
        splits[split] = datasets.load_from_disk(folder / split)
        splits[split]._fingerprint = fingerprint  # `load_from_disk` makes a new one
    return splits


@contextmanager
def _hub_errors(
    dataset_name: str, config: str | None, revision: str | None, cache_dir: str | Path | None
) -> Iterator[None]:
    import datasets

    prepare_download(dataset_name)
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError) as error:
        where = (
            f"the hub was not asked, because it cannot be reached or HF_HUB_OFFLINE is set; the local cache was "
            f"({cache_dir or datasets.config.HF_DATASETS_CACHE})"
            if datasets.config.HF_HUB_OFFLINE
            else f"the hub was asked ({datasets.config.HF_ENDPOINT})"
        )
        raise DataError(
            f"data.dataset_name: {dataset_name!r} (configuration {config or 'default'}, revision {revision or 'main'}) "
            f"cannot be loaded: {where}. The error was: {error.__cause__ or error}\n"
            "Check the name, load it once with a network connection, or give local files with data.train_file."
        ) from error


def hub_rows(dataset: datasets.Dataset, reading: Reading = RECOGNISED) -> Iterator[RawRow]:
    """Streams the rows of one split, numbered from 1, with class names instead of class numbers."""
    # Arrow batches instead of Python rows, so that unused audio and images are not decoded.
    batches = dataset.with_format("arrow").iter(batch_size=ARROW_BATCH_ROWS)
    return checked(arrow_rows(batches, dataset.features), f"Split {dataset.split!s} of the dataset", reading)

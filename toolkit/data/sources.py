"""Sources of rows: reads local files and folders as streams of numbered raw rows.

An unusable row stays in the stream, with the reason; a source that cannot be read at all is a `DataError`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from toolkit.base.errors import DataError
from toolkit.base.files import expanded
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
from toolkit.data.copies import copy_of
from toolkit.data.media.files import (
    COLUMN_OF,
    file_digest,
    folder_digest,
    folder_note,
    is_archive,
    read_archive,
    read_files,
    read_folder,
)
from toolkit.data.readers import arrow, conll, delimited, excel, hdf5, json_rows, plain, tmx
from toolkit.data.readers.raw import RawRow, checked
from toolkit.data.reading import RECOGNISED, Fingerprint, Reading

Source = str | Path | Sequence[str | Path]
"""A data file, a folder, or several image and audio files."""
READERS: dict[str, Callable[[Path, Reading], Iterator[RawRow]]] = {
    ".conll": conll.read,
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
    """Streams the rows of a source.

    Only .json files are read into memory completely.

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
    return checked(_raw_rows(source, reading, labelled), name, reading.unescape_html)


def _raw_rows(source: Source, reading: Reading, labelled: bool) -> Iterator[RawRow]:
    if not isinstance(source, str | Path):
        return read_files([_existing(path) for path in source])
    if aligned := aligned_files(str(source)):
        return plain.read_aligned({column: _existing(name) for column, name in aligned.items()}, reading)
    file = _existing(source)
    if file.is_dir():
        return read_folder(file, labelled)
    if is_archive(file):
        return read_archive(file, labelled)
    suffix = file.suffix.lower()
    if suffix in COLUMN_OF and not labelled:
        return read_files([file])
    if suffix in COLUMN_OF:
        raise DataError(
            f"{source} is a single {COLUMN_OF[suffix]} file without a label; expected a folder with <class>/<file>, "
            "or a table (.csv, .jsonl and so on) with paths and labels."
        )
    if suffix not in READERS:
        others = f"use one of {', '.join(READERS)}, or a folder or archive (.tar, .zip) of images or audio files"
        way_out = SAVE_SPREADSHEET if suffix in SPREADSHEETS else DECOMPRESS if suffix in COMPRESSED else others
        raise DataError(f"{source}: unsupported file type {file.suffix!r}; {way_out}.")
    return READERS[suffix](file, _with_sheet(source, reading))


def reading_notes(source: Source, reading: Reading) -> list[str]:
    """Returns one line for each file of a source that is read in another way than its name and the settings say.

    Args:
        source: the source.
        reading: how to read it.

    Raises:
        DataError: if a file is missing, or its encoding is not recognised.
    """
    names = files_of(str(source)) if isinstance(source, str | Path) else source
    usual = plain.note if aligned_files(str(source)) else None
    notes = []
    for file in map(_existing, names):
        note = folder_note if file.is_dir() else _NOTES.get(file.suffix.lower(), usual)
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
    return path.is_dir() or path.suffix.lower() in COLUMN_OF or is_archive(path)


def folder_of(source: Source) -> Path:
    """Returns the absolute folder that relative paths in the rows of a source start from; an archive is one."""
    if not isinstance(source, str | Path):
        return Path().absolute()
    path = expanded(source)
    if path.is_dir() or is_archive(path):
        return path.absolute()
    table = expanded(sheet_of(str(source))[0])
    return (Path() if path.suffix.lower() in COLUMN_OF else table.parent).absolute()


def fingerprint(source: Source, how: Fingerprint = "content") -> str:
    """Returns the sha256 of a file's bytes, or of the names in a folder, in hexadecimal.

    For several files it is the sha256 of their concatenated fingerprints; for a sheet, of the file's and the name.

    Args:
        source: the source.
        how: `stat` replaces a file's bytes by its path, size and time of modification.

    Raises:
        DataError: if the file does not exist or cannot be opened.
    """
    if not isinstance(source, str | Path):
        return hashlib.sha256("".join(fingerprint(each, how) for each in source).encode()).hexdigest()
    if aligned := aligned_files(str(source)):
        return fingerprint(list(aligned.values()), how)
    file = _existing(source)
    if file.is_dir():
        return folder_digest(file)
    digest = file_digest(file, how)
    sheet = sheet_of(str(source))[1]
    return digest if sheet is None else hashlib.sha256(f"{digest}#{sheet}".encode()).hexdigest()


def place_of(source: Source, copies: Path | None) -> Source:
    """Returns where a source is read: its copy if it has one below `copies`; a folder is listed where it is."""
    if copies is None or not isinstance(source, str | Path) or expanded(source).is_dir():
        return source
    copy = str(copy_of(expanded(source), copies))
    return copy if all(Path(file).exists() for file in files_of(copy)) else source


def num_bytes(source: Source) -> int:
    """Returns the size of a file in bytes, or the total size of several.

    Raises:
        DataError: if the file does not exist or cannot be opened.
    """
    names = files_of(str(source)) if isinstance(source, str | Path) else source
    return sum(_existing(name).stat().st_size for name in names)


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

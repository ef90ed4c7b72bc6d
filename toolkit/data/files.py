"""Pictures and recordings in files of their own: folders of classes, columns that hold paths, bytes in tables.

A row refers to its file as `{"path", "bytes", "name"}`: where the file is (or None), its content (where the table
itself holds it, as data sets of the hub do, or None), and how it is called in messages and predictions.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.api.task import BadRow
from toolkit.base.errors import DataError
from toolkit.data.readers import RawRow

SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
"""Endings of the files in a folder, by the column that they are given in."""
_COLUMNS = {suffix: column for column, suffixes in SUFFIXES.items() for suffix in suffixes}


def read_folder(folder: Path) -> Iterator[RawRow]:
    """Streams the files of `folder/<class>/...` in the order of their names, as `image` or `audio` and `label`.

    Hidden files are passed over; a file of any other ending is a bad row.

    Raises:
        DataError: if the folder has no folders of classes.
    """
    if not any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir()):
        raise DataError(
            f"{folder} is a folder without folders of classes in it; expected {folder}/<class>/<file>, "
            "or a table (.csv, .jsonl and so on) with the paths of its files."
        )
    return _rows(folder)


def _rows(folder: Path) -> Iterator[RawRow]:
    for number, name in enumerate(_names(folder), start=1):
        column = _COLUMNS.get(Path(name).suffix.lower())
        label = Path(name).parts[0] if len(Path(name).parts) > 1 else None
        if column is None:
            yield RawRow(number, {"file": name}, f"{name} is neither a picture nor a recording by its ending")
        elif label is None:
            yield RawRow(number, {column: name}, f"{name} lies in no folder of a class")
        else:
            yield RawRow(number, {column: name, "label": label})


def folder_digest(folder: Path) -> str:
    """Returns the sha256, in hexadecimal, of the names of a folder's files."""
    return hashlib.sha256("\0".join(_names(folder)).encode("utf-8", "surrogateescape")).hexdigest()


def _names(folder: Path) -> list[str]:
    """Paths of all files below a folder that are not hidden, links to files and folders included, in order."""
    names: list[str] = []
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        here = Path(place)
        # A link to a folder that it lies in would lead round and round.
        folders[:] = [name for name in folders if name[0] != "." and not _leads_back(here / name)]
        names += [(here / name).relative_to(folder).as_posix() for name in files if name[0] != "."]
    return sorted(names)


def _leads_back(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be opened: {error.strerror}.") from error


def content_digest(key: str, rows: Iterable[RawRow], columns: Iterable[str], folder: Path) -> str:
    """Returns a sha256, in hexadecimal, that also covers the content of the files that rows refer to.

    Args:
        key: digest of the table itself.
        rows: its rows.
        columns: those of its columns that hold paths.
        folder: where relative paths start.
    """
    digest = hashlib.sha256(key.encode())
    columns = list(columns)
    for row in rows:
        for column in columns:
            path = _path((row.values or {}).get(column), folder)
            if path is None:
                continue
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except (OSError, ValueError):  # it is missing, or no name of a file: a bad row, until that changes
                digest.update(b"missing")
    return digest.hexdigest()


def reference(value: Any, folder: Path, number: int) -> dict[str, Any]:
    """Returns a row's file as the toolkit refers to it.

    Args:
        value: a path, or what `datasets` stores for pictures and recordings.
        folder: where a relative path starts.
        number: the row's number, which names a file that has no name.

    Raises:
        BadRow: if it is neither.
    """
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return {"path": None, "bytes": value["bytes"], "name": value.get("path") or f"row {number}"}
    path = _path(value, folder)
    if path is None:
        raise BadRow(f"{value!r} is not the path of a file")
    name = value["path"] if isinstance(value, Mapping) else value
    try:
        found = path.is_file()
    except ValueError:  # a name that no file can have
        found = False
    if not found:
        raise BadRow(f"there is no file {name} (tried {path})")
    return {"path": str(path), "bytes": None, "name": name}


def open_file(file: Mapping[str, Any]) -> BinaryIO:
    """Opens a row's file for reading.

    Raises:
        OSError: if it is not there any more.
    """
    return io.BytesIO(file["bytes"]) if file["bytes"] is not None else Path(file["path"]).open("rb")


def _path(value: Any, folder: Path) -> Path | None:
    name = value.get("path") if isinstance(value, Mapping) else value
    return (folder / name).absolute() if isinstance(name, str) and name.strip() else None

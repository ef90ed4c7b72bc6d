"""Image and audio files: folders of classes, columns of paths, and bytes in tables.

A row refers to its file as `{"path", "bytes", "name"}`: the file's path or None, its content if the table holds it (as
datasets of the hub do) or None, and its name in messages and predictions.
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
"""Suffixes of the files in a folder, by the column for these files."""
_COLUMNS = {suffix: column for column, suffixes in SUFFIXES.items() for suffix in suffixes}


def read_folder(folder: Path) -> Iterator[RawRow]:
    """Streams the files of `folder/<class>/...` in the order of their names, as `image` or `audio` and `label`.

    Hidden files are skipped; a file with any other suffix is a bad row.

    Raises:
        DataError: if the folder has no folders of classes.
    """
    if not any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir()):
        raise DataError(
            f"{folder} has no folders of classes; expected {folder}/<class>/<file>, "
            "or a table (.csv, .jsonl and so on) with the paths of the files."
        )
    return _rows(folder)


def _rows(folder: Path) -> Iterator[RawRow]:
    for number, name in enumerate(_names(folder), start=1):
        column = _COLUMNS.get(Path(name).suffix.lower())
        label = Path(name).parts[0] if len(Path(name).parts) > 1 else None
        if column is None:
            yield RawRow(number, {"file": name}, f"{name} does not have the suffix of an image or audio file")
        elif label is None:
            yield RawRow(number, {column: name}, f"{name} is not in the folder of a class")
        else:
            yield RawRow(number, {column: name, "label": label})


def folder_digest(folder: Path) -> str:
    """Returns the sha256, in hexadecimal, of the names of a folder's files."""
    return hashlib.sha256("\0".join(_names(folder)).encode("utf-8", "surrogateescape")).hexdigest()


def _names(folder: Path) -> list[str]:
    """Returns the sorted paths of all files below a folder that are not hidden; links are followed."""
    names: list[str] = []
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        here = Path(place)
        # A link to one of its parent folders would never end.
        folders[:] = [name for name in folders if name[0] != "." and not _leads_back(here / name)]
        names += [(here / name).relative_to(folder).as_posix() for name in files if name[0] != "."]
    return sorted(names)


def _leads_back(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be opened: {error.strerror}.") from error


def content_digest(key: str, rows: Iterable[RawRow], columns: Iterable[str], folder: Path) -> str:
    """Returns the sha256, in hexadecimal, of a table and the content of the files that its rows refer to.

    Args:
        key: digest of the table.
        rows: its rows.
        columns: its columns of paths.
        folder: the folder that relative paths start from.
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
            except (OSError, ValueError):  # missing, or not a valid name: a bad row until that changes
                digest.update(b"missing")
    return digest.hexdigest()


def reference(value: Any, folder: Path, number: int) -> dict[str, Any]:
    """Returns the reference to a row's file, with the keys `path`, `bytes` and `name`.

    Args:
        value: a path, or the value that `datasets` stores for an image or audio.
        folder: the folder that relative paths start from.
        number: number of the row, for the name of a file that has none.

    Raises:
        BadRow: if the value is neither, or the file does not exist.
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
        OSError: if it cannot be opened, for instance because it no longer exists.
    """
    return io.BytesIO(file["bytes"]) if file["bytes"] is not None else Path(file["path"]).open("rb")


def _path(value: Any, folder: Path) -> Path | None:
    name = value.get("path") if isinstance(value, Mapping) else value
    return (folder / name).absolute() if isinstance(name, str) and name.strip() else None

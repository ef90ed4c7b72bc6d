"""Files and folders that an option of a command names for writing."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.base.files import expanded


def output_file(path: str | Path, option: str = "--output") -> Path:
    """Returns the file of an option, `--output` unless another is named, after checking that it can be written.

    Raises InputError if its folder does not exist, or the file cannot be written.
    """
    file = expanded(path)
    if not file.parent.is_dir():
        raise InputError(f"{option}: there is no folder {file.parent.absolute()}; create it first")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise InputError(f"{option}: cannot write {file.absolute()}; use another file")
    return file


def output_folder(path: str | Path, option: str = "--output-dir", make: bool = True, empty: bool = True) -> Path:
    """Returns the folder of an option; `make` creates it, `empty` means that it must be empty if it exists.

    Raises InputError if it is not an empty folder, its parent does not exist, or it cannot be created.
    """
    folder = expanded(path)
    if empty and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
        raise InputError(f"{option}: {folder.absolute()} is not an empty folder; use another one, or delete it")
    if not make:
        return folder if folder.is_dir() else output_file(folder, option)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option}: cannot make the folder {folder.absolute()}: {error.strerror}") from error
    return folder

"""Files and folders that an option of a command names for writing."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.base.files import expanded
from toolkit.base.run_folder import RunFolder


def output_file(path: str | Path, overwrite: bool = False) -> Path:
    """Returns the file of `--output`, after checking that it can be written.

    Raises InputError if its folder does not exist, it cannot be written, or it exists and may not be overwritten.
    """
    file = expanded(path)
    if not file.parent.is_dir():
        raise InputError(f"--output: there is no folder {file.parent.absolute()}; create it first")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise InputError(f"--output: cannot write {file.absolute()}; use another file")
    if file.exists() and not overwrite:
        raise InputError(
            f"{file} exists, and may have been edited; name another file with --output, or add --overwrite"
        )
    return file


def output_folder(path: str | Path, make: bool = True, again: bool = False) -> Path:
    """Returns the folder of `--output`, which must be empty if it exists; `make` creates it.

    With `again`, it is marked by its lock file, and one that an earlier call has marked need not be empty. Raises
    InputError if it holds something else, its parent does not exist, or it cannot be created.
    """
    folder = expanded(path)
    mark = RunFolder(folder).lock
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (again and mark.exists())):
        raise InputError(f"--output: {folder.absolute()} is not an empty folder; use another one, or delete it")
    if not make:
        return folder if folder.is_dir() else output_file(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if again:
            mark.touch()
    except OSError as error:
        raise InputError(f"--output: cannot make the folder {folder.absolute()}: {error.strerror}") from error
    return folder

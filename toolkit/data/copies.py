"""Names of copies of files, in a folder that stands for the root of the file system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.base.errors import DataError


def place_of(path: Path, copies: Path | None) -> Path:
    """Returns where a file is read: its copy if it has one below `copies`, a folder that stands for the root."""
    if copies is None:
        return path
    copy = copy_of(path, copies)
    return copy if copy.exists() else path


def copy_of(path: Path, copies: Path) -> Path:
    """Returns the place of a file's copy. Different files have different ones; two links to a file may have two."""
    path = absolute(path)
    return copies / path.relative_to(path.anchor)


def absolute(path: Path) -> Path:
    """Returns the absolute path of a file without `..`."""
    path = path.absolute()
    if ".." not in path.parts:
        return path
    return Path(os.path.realpath(path.parent), path.name)  # behind a link, `..` is not the parent of the link


def with_former_names(text: str, copies: Path | None) -> str:
    """Returns a text in which copies are named as the files that the user named."""
    return text if copies is None else text.replace(f"{copies}{os.sep}", os.sep)


@contextmanager
def named_as_before(copies: Path | None) -> Iterator[None]:
    """Applies `with_former_names` to errors.

    Raises:
        DataError: as inside the block.
    """
    try:
        yield
    except DataError as error:
        if (text := with_former_names(str(error), copies)) == str(error):
            raise
        raise DataError(text) from error

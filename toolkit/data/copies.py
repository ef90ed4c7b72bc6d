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
    path = path.absolute()
    if ".." in path.parts:  # behind a link, it is not the parent of the link
        path = path.parent.resolve() / path.name
    return copies / path.relative_to(path.anchor)


@contextmanager
def named_as_before(copies: Path | None) -> Iterator[None]:
    """Lets errors about copies name the files that the user named.

    Raises:
        DataError: as inside the block.
    """
    try:
        yield
    except DataError as error:
        if copies is None or str(copies) not in str(error):
            raise
        raise DataError(str(error).replace(f"{copies}{os.sep}", os.sep)) from error

"""Messages for errors of files and disks, whichever library raises them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit.base.console import format_bytes, shorten

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_DISKS = (*_FULL, errno.EIO, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE)
"""Errors that say nothing but themselves when a library leaves out the file."""
_IN_RUST = re.compile(r"\(os error (\d+)\)")
"""How libraries that are written in Rust name the operating system's errors in exceptions of their own."""


def disk_problem(error: BaseException, folder: Path | None = None) -> str | None:
    """Returns the message for an error of a file or a disk, with the path and, for a full disk, what is free.

    Args:
        error: any error; libraries such as safetensors and tokenizers raise errors of their own.
        folder: where was written, if the error does not say; None means the working or the temporary folder.

    Returns:
        The message, or None for every other error.
    """
    number = _number_of(error)
    is_full = number in _FULL
    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        place = Path(str(error.filename))
        return f"{shorten(str(place), 200)}: {error.strerror}{_free([place]) if is_full else ''}"
    if number not in _OF_DISKS:
        return None
    if not is_full:
        return f"a file cannot be read or written ({shorten(str(error), 200)})"
    places = [Path.cwd(), Path(tempfile.gettempdir())] if folder is None else [folder]
    return f"a disk is full ({shorten(str(error), 200)}){_free(places)}"


@contextmanager
def rust_errors_as_os_errors() -> Iterator[None]:
    """Raises an `OSError` instead of the errors that Rust libraries make of the operating system's.

    Raises:
        OSError: if a library could not read or write.
    """
    try:
        yield
    except Exception as error:
        number = _number_of(error)
        if isinstance(error, OSError) or number is None:
            raise
        raise OSError(number, os.strerror(number)) from error


def _number_of(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _IN_RUST.search(str(error))
    return int(found[1]) if found else None


def _free(places: list[Path]) -> str:
    found = []
    for place in places:
        with suppress(OSError, StopIteration):
            folder = next(each for each in (place, *place.absolute().parents) if each.is_dir())
            found.append(f"{format_bytes(shutil.disk_usage(folder).free)} are free in {folder}")
    return f"; {', '.join(found)}" if found else ""

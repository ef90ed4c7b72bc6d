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
_IN_LIBRARIES = re.compile(r"\(os error (\d+)\)|: No space left on device \((\d+)\)")
"""How libraries that are written in Rust, and torch, name the operating system's errors in exceptions of their own."""
_OF_SHARED_MEMORY = "</torch_"
"""Part of torch's errors of files in shared memory."""


def disk_problem(error: BaseException, folder: Path | None = None, needed: int | None = None) -> str | None:
    """Returns the message for an error of a file or a disk, with the path and, for a full disk, what is free.

    Args:
        error: any error; libraries such as safetensors, tokenizers and torch raise errors of their own.
        folder: where was written, if the error does not say; None means the working or the temporary folder.
        needed: bytes that are written there, if the error does not say (`toolkit.base.files.naming`).

    Returns:
        The message, or None for every other error.
    """
    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        place = Path(str(error.filename))
        return f"{shorten(str(place), 200)}: {why(error, place, needed)}"
    if not is_full(error):
        of_disk = _number_of(error) in _OF_DISKS
        return f"a file cannot be read or written ({shorten(str(error), 200)})" if of_disk else None
    if _OF_SHARED_MEMORY in str(error):
        space = _space(error, [Path("/dev/shm")], needed)
        return f"shared memory is full{space}; lower train.dataloader_num_workers, or make /dev/shm larger"
    places = [Path.cwd(), Path(tempfile.gettempdir())] if folder is None else [folder]
    return f"a disk is full ({shorten(str(error), 200)}){_space(error, places, needed)}"


def why(error: OSError, place: Path, needed: int | None = None) -> str:
    """Returns the reason for an error of a file, for a message that names it; arguments as for `disk_problem`."""
    return f"{error.strerror or error}{_space(error, [place], needed) if is_full(error) else ''}"


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, a quota or shared memory is used up."""
    return _number_of(error) in _FULL


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
    found = _IN_LIBRARIES.search(str(error))
    return int(found[1] or found[2]) if found else None


def _space(error: BaseException, places: list[Path], needed: int | None) -> str:
    """Returns what is needed, if it is known, and what is free in places on different disks."""
    needed = getattr(error, "needed", None) if needed is None else needed
    found = [] if needed is None else [f"{format_bytes(needed)} are needed"]
    for place in places:
        with suppress(OSError, StopIteration):
            folder = next(each for each in (place, *place.absolute().parents) if each.is_dir())
            found.append(f"{format_bytes(shutil.disk_usage(folder).free)} are free in {folder}")
    return f"; {', '.join(found)}" if found else ""

"""Messages for errors of files and disks, whichever library raises them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from toolkit.base.console import format_bytes, shorten

_FULL = ("No space left on device", "Disk quota exceeded", "os error 28", "os error 122")
"""Parts of the messages of a full disk, also of libraries that are not written in Python."""


def disk_problem(error: BaseException, folder: Path | None = None) -> str | None:
    """Returns the message for an error of a file or a disk, with the path and, for a full disk, what is free.

    Args:
        error: any error; libraries such as safetensors and tokenizers raise errors of their own for a full disk.
        folder: where was written, if the error does not say; None means the working or the temporary folder.

    Returns:
        The message, or None for every other error.
    """
    is_full = any(sign in str(error) for sign in _FULL)
    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        place = Path(str(error.filename))
        return f"{shorten(str(place), 200)}: {error.strerror}{_free([place]) if is_full else ''}"
    if not is_full:
        return None
    places = [Path.cwd(), Path(tempfile.gettempdir())] if folder is None else [folder]
    return f"a disk is full ({shorten(str(error), 200)}){_free(places)}"


def _free(places: list[Path]) -> str:
    found = []
    for place in places:
        with suppress(OSError, StopIteration):
            folder = next(each for each in (place, *place.absolute().parents) if each.is_dir())
            found.append(f"{format_bytes(shutil.disk_usage(folder).free)} are free in {folder}")
    return f"; {', '.join(found)}" if found else ""

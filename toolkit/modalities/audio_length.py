"""What audio files promise about their own length; libsndfile silently takes what is there."""

from __future__ import annotations

import struct
from typing import BinaryIO

UNKNOWN_SIZES = (0, 0xFFFFFFFF)
"""Sizes in the header of a WAV file that was written to a pipe."""
_PAGE_BYTES = 2**16
"""An Ogg page is at most this long, with its header."""
_LAST_PAGE = 0x04


def missing_share(file: BinaryIO) -> float | None:
    """Returns how much of the audio that a WAV file promises is missing, between 0 and 1, and None for other formats.

    The position in the file is restored.

    Args:
        file: the opened file.
    """
    start = file.tell()
    try:
        if file.read(4) != b"RIFF" or file.read(8)[4:] != b"WAVE":
            return None
        while len(header := file.read(8)) == 8:
            name, size = struct.unpack("<4sI", header)
            here = file.tell()
            if name == b"data":
                present = file.seek(0, 2) - here
                return 0.0 if size in UNKNOWN_SIZES else max(0.0, 1 - present / size)
            file.seek(here + size + size % 2)
        return None
    finally:
        file.seek(start)


def lacks_last_page(file: BinaryIO) -> bool:
    """Returns whether an Ogg file ends before the page that is marked as its last; the position is restored.

    Args:
        file: the opened file.
    """
    start = file.tell()
    try:
        if file.read(4) != b"OggS":
            return False
        file.seek(max(start, file.seek(0, 2) - _PAGE_BYTES))
        end = file.read()
        page = end.rfind(b"OggS")
        return page < 0 or len(end) < page + 6 or not end[page + 5] & _LAST_PAGE
    finally:
        file.seek(start)

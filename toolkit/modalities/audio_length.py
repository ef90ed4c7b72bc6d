"""What audio files promise about their own length; libsndfile silently takes what is there."""

from __future__ import annotations

import struct
from typing import BinaryIO

WITH_LENGTH = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
"""Formats, as soundfile names them, of which it is noticed that a file breaks off."""
UNKNOWN_SIZES = (0, 2**32 - 1, 2**64 - 1)
"""Sizes in the header of a WAV file that was written to a pipe."""
_BYTE_ORDERS = {b"RIFF": "<", b"RIFX": ">", b"RF64": "<"}
_IN_DS64 = 2**32 - 1
"""Size in the header of an RF64 file that stands for one of 64 bits, which comes before."""
_MOST_MISSING = 1 - 1e-15
_PAGE_BYTES = 2**16
"""An Ogg page is at most this long, with its header."""
_LAST_PAGE = 0x04


def missing_share(file: BinaryIO) -> float | None:
    """Returns how much of the audio that a WAV file promises is missing, from 0 to nearly 1; None for other formats.

    RIFX is WAV with its numbers in the other byte order, RF64 is WAV of more than 4 GiB. The position in the file is
    restored.

    Args:
        file: the opened file.
    """
    start = file.tell()
    try:
        order, long_size = _BYTE_ORDERS.get(file.read(4)), None
        if order is None or file.read(8)[4:] != b"WAVE":
            return None
        while len(header := file.read(8)) == 8:
            name, size = struct.unpack(f"{order}4sI", header)
            here = file.tell()
            if name == b"ds64":
                long_size = int.from_bytes(file.read(16)[8:], "little")
            if name == b"data":
                size = long_size if size == _IN_DS64 and long_size is not None else size
                present = file.seek(0, 2) - here
                return 0.0 if size in UNKNOWN_SIZES else min(max(0.0, 1 - present / size), _MOST_MISSING)
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

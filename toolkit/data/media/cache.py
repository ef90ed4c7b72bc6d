"""Caches decoded media files across the epochs and evaluations of a run.

Arrays are in one temporary file without a name, which all processes of a node share: their loader workers inherit it.
It belongs to one run and is gone when the run's processes are. An array is written before its entry, which has its
checksum; a file whose array does not match its checksum is decoded again, as are all rows once the limit or the disk
is full.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.system.limits import available_memory

if TYPE_CHECKING:
    from accelerate import Accelerator

SHARE = 4
"""`data.media_cache: auto` is one part in this many of the free memory or disk space, whichever is less."""
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
TYPES = ("uint8", "float32")
AXES = 4
_NEXT = struct.Struct("<Q")
"""The first bytes of the file: where the next array begins; 0 before the first."""
_ENTRY = struct.Struct(f"<QIII{AXES}I")
"""For each row: where its array begins, its checksum, its type, its number of axes and its shape."""
_CHECKSUM = struct.Struct("<I")
"""Follows each entry: the entry's own checksum."""


class MediaCache:
    """Caches up to `count` arrays by number in a file of at most `limit` bytes, closed with this object."""

    def __init__(self, file: int, count: int, limit: int) -> None:
        self.file: int | None = file
        self.count, self.limit = count, limit
        self._is_full = False

    def __del__(self) -> None:
        if self.file is not None:
            os.close(self.file)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"file": None}  # workers that are not forks read every time

    def get(self, number: int) -> np.ndarray | None:
        """Returns an array, or None if it is not cached."""
        if self.file is None:
            return None
        with suppress(OSError):
            entry = os.pread(self.file, _ENTRY.size + _CHECKSUM.size, self._place(number))
            fields = entry[: _ENTRY.size]
            if entry[_ENTRY.size :] != _CHECKSUM.pack(zlib.crc32(fields)):
                return None
            begin, checksum, kind, axes, *shape = _ENTRY.unpack(fields)
            array = np.empty(shape[:axes], TYPES[kind])
            view = array.data.cast("B")
            if os.preadv(self.file, [view], begin) == array.nbytes and zlib.crc32(view) == checksum:
                return array
        return None

    def put(self, number: int, array: np.ndarray) -> None:
        """Caches an array, if there is room for it."""
        if self.file is None or self._is_full or str(array.dtype) not in TYPES or array.ndim > AXES:
            return
        array = np.ascontiguousarray(array)
        view = array.data.cast("B")
        try:
            begin = self._reserve(array.nbytes)
            self._is_full = begin is None
            if begin is None or os.pwrite(self.file, view, begin) != array.nbytes:
                return
            shape = (*array.shape, *[0] * (AXES - array.ndim))
            entry = _ENTRY.pack(begin, zlib.crc32(view), TYPES.index(str(array.dtype)), array.ndim, *shape)
            os.pwrite(self.file, entry + _CHECKSUM.pack(zlib.crc32(entry)), self._place(number))
        except OSError:  # the disk is full, or has no locks
            self._is_full = True

    def _reserve(self, size: int) -> int | None:
        """Returns where an array of this size may be written, or None if there is no room."""
        assert self.file is not None
        with _locked(self.file):
            start = os.pread(self.file, _NEXT.size, 0)
            begin = _NEXT.unpack(start)[0] if len(start) == _NEXT.size else 0
            begin = begin or self._place(self.count)
            if begin + size > self.limit:
                return None
            os.pwrite(self.file, _NEXT.pack(begin + size), 0)
        return begin

    def _place(self, number: int) -> int:
        return _NEXT.size + number * (_ENTRY.size + _CHECKSUM.size)


@dataclass(frozen=True)
class CachedRows:
    """The part of the cache for one set of rows, from array number `first`."""

    arrays: MediaCache
    first: int

    def decoded(self, row_id: int, read: Callable[[], np.ndarray | None]) -> np.ndarray | None:
        """Returns the cached array of a row, or that of `read`, which is cached from now on."""
        array = self.arrays.get(self.first + row_id)
        if array is None and (array := read()) is not None:
            self.arrays.put(self.first + row_id, array)
        return array


def cache_media(sizes: dict[str, int], setting: str, accelerator: Accelerator) -> dict[str, CachedRows]:
    """Creates the cache that the processes of a node share; returns its part of each set, by name.

    There is none if `data.media_cache` (`setting`) is 0 or no temporary file can be made. Every process must call this.
    """
    if setting == "0" or (file := _shared_file(accelerator)) is None:
        return {}
    arrays = MediaCache(file, sum(sizes.values()), limit_of(setting, Path(tempfile.gettempdir())))
    firsts = np.cumsum([0, *sizes.values()]).tolist()
    return {name: CachedRows(arrays, first) for name, first in zip(sizes, firsts, strict=False)}


def limit_of(setting: str, folder: Path) -> int:
    """Returns a value of `data.media_cache` other than 0 in bytes."""
    if setting == "auto":
        space = os.statvfs(folder)
        return min(space.f_bavail * space.f_frsize, available_memory()) // SHARE
    return int(setting[:-3]) * UNITS[setting[-3:]]


def _shared_file(accelerator: Accelerator) -> int | None:
    """Returns the descriptor of a new file, the same one for all processes of a node; None if that is not possible."""
    if accelerator.num_processes == 1:
        with suppress(OSError):
            return new_file()[0]
        return None
    import socket

    from accelerate.utils import gather_object

    node, file, path = socket.gethostname(), None, ""
    if accelerator.is_local_main_process:
        with suppress(OSError):
            file, path = new_file(named=True)
    paths = dict(reversed([each for each in gather_object([(node, path)]) if each[1]]))
    if file is None and node in paths:
        with suppress(OSError):
            file = os.open(paths[node], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    accelerator.wait_for_everyone()
    if path:
        Path(path).unlink()
    return file


def new_file(named: bool = False) -> tuple[int, str]:
    """Makes a temporary file, without a name unless `named`, and returns its descriptor and path."""
    file, path = tempfile.mkstemp(prefix="toolkit-media-")
    if not named:
        Path(path).unlink()
    return file, path


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """Lets one process at a time run the block; forks that share a descriptor are different processes here."""
    import fcntl

    fcntl.lockf(file, fcntl.LOCK_EX, 1)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1)

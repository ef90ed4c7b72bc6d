"""What the C library does with memory that tensors have freed (glibc only)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

MIB = 2**20
TRIM, MAP = -1, -3
"""Options of `mallopt`: how much may be free at the end of the heap, and how large blocks outside the heap are."""
KEPT = ({MAP: 256 * MIB, TRIM: 1024 * MIB}, {MAP: 32 * MIB, TRIM: 1024 * MIB})
"""What is set; the second where the first is refused: older versions keep blocks of more than 32 MiB outside."""
USUAL = {MAP: 32 * MIB, TRIM: 64 * MIB}
"""What glibc arrives at by itself with large blocks; once set, the values no longer change by themselves."""
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
TUNABLES = ("glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")
_users = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keeps freed memory for the next allocations, instead of returning it to the system.

    Every training step allocates and frees the same memory. glibc returns most of it and gets it again page by page,
    which takes up to a fifth of a step. Settings in the environment are left alone. What is free when the outermost
    block ends is returned.
    """
    global _users
    if is_set(os.environ):
        yield
        return
    if _users == 0:
        any(_set(values) for values in KEPT)
    _users += 1
    try:
        yield
    finally:
        _users -= 1
        if _users == 0 and _set(USUAL):
            give_back_freed()


def is_set(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment says what glibc does."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(name in environment for name in VARIABLES) or any(name in tunables for name in TUNABLES)


def give_back_freed() -> None:
    """Returns freed memory to the system."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


def _set(values: Mapping[int, int]) -> bool:
    """Sets options and returns whether the C library has taken all of them."""
    mallopt = _function("mallopt")
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in values.items())


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    """Returns a function of the C library, or None if that is not glibc."""
    try:
        library = ctypes.CDLL(None)
        return getattr(library, name) if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, AttributeError, TypeError):  # no library, no function, or Windows
        return None

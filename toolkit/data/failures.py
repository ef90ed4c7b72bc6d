"""Failures of the machine while a row's file is read: they say nothing about the file, so no row may be blamed."""

from __future__ import annotations

import errno

from toolkit.base.errors import DataError

_OF_THE_MACHINE = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "ENOMEM", "EMFILE", "ENFILE", "EAGAIN", "EINTR", "ENOSPC", "EDQUOT", "ENOBUFS"),
        *("ESTALE", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "ECONNRESET", "ECONNABORTED", "EHOSTDOWN", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)  # some systems lack some of them
)


def refuse_failure(name: str, error: BaseException) -> None:
    """Raises if a file could not be read for a reason that is not in the file; otherwise does nothing.

    Bad rows are cached, and would stay bad when the machine can read the file again.

    Args:
        name: the file's name, for the message.
        error: what reading it raised.

    Raises:
        DataError: if memory ran out, or the system could not read or open the file just now.
    """
    if isinstance(error, MemoryError):
        raise DataError(
            f"{name}: there was not enough memory to read it. Free some memory, for instance with fewer processes on "
            "this machine, and start again."
        ) from error
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        raise DataError(
            f"{name} could not be read: {error.strerror}. This is a failure of the machine or its disk, and the file "
            "may be intact: start again; if the error stays, check the disk and the limit on open files (ulimit -n)."
        ) from error

"""Faults in the file operations of a process, by the C library `file_faults.c`, which the linker loads first."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COUNT, KILL, HALF, ONCE, FROM = range(5)
"""What happens at the n-th operation: nothing, a kill before it or in its middle, an error once or from then on."""
FAULTS: dict[str, tuple[int, int]] = {
    "kill": (KILL, 0),
    "half": (HALF, 0),
    "ENOSPC": (FROM, errno.ENOSPC),
    "EIO": (ONCE, errno.EIO),
    "EDQUOT": (FROM, errno.EDQUOT),
    "EACCES": (ONCE, errno.EACCES),
}
DEADLY = ("kill", "half")


def built(folder: Path) -> Path | None:
    """Compiles the library into a folder; returns None if there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.uname().sysname != "Linux":
        return None
    library = folder / "file_faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def arm(
    roots: Sequence[str], fault: str | None = None, nth: int = 0, log: str | None = None, kept: str | None = None
) -> None:
    """Counts the operations below `roots` in this process from now on.

    Args:
        roots: absolute folders.
        fault: a name of `FAULTS`, None to count only.
        nth: the operation that it hits, from 1.
        log: a file for one line per operation, see `read_log`.
        kept: a file for the bytes that each flush has made durable.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [-1 if path is None else os.open(path, flags, 0o600) for path in (log, kept)]
    mode, error = FAULTS[fault] if fault else (COUNT, 0)
    folders = "\n".join(os.path.realpath(root) for root in roots).encode()
    ctypes.CDLL(None).file_faults_arm(folders, *files, mode, ctypes.c_long(nth), error)


def shift_clock(shift: float, step: float = 0.0) -> None:
    """Shifts this process's wall clock by `shift` seconds, and by `step` more at each reading."""
    ctypes.CDLL(None).file_faults_clock(ctypes.c_double(shift), ctypes.c_double(step))


@dataclass(frozen=True)
class Operation:
    """An operation that succeeded.

    Args:
        number: from 1.
        name: of the function, `fsync` for all flushes.
        inode: of the file or folder afterwards, 0 if it is gone.
        place: where its durable bytes begin in the file `kept`, -1 if they were not kept.
        length: number of those bytes.
        path: the file.
        other: the new path after a rename.
    """

    number: int
    name: str
    inode: int
    place: int
    length: int
    path: str
    other: str


def read_log(path: Path) -> list[Operation]:
    """Returns the operations that a process has logged."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        number, name, inode, place, length, first, other = line.split("\t")
        found.append(Operation(int(number), name, int(inode), int(place), int(length), first, other))
    return found

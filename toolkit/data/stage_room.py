"""Room and locks of a folder of copies (see `toolkit.data.staging`)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit.base.console import say
from toolkit.base.errors import DataError
from toolkit.base.files import is_temporary
from toolkit.system.limits import available_memory

ENTRY, LOCK = "copies-", ".lock"
"""How the names of entries begin, so that nothing else in the folder is taken for one, and the suffix of locks."""
BLOCK = 4096
"""Files take up whole blocks."""
WAIT_SECONDS, POLL_SECONDS = 24 * 60 * 60, 0.2
"""How long a run waits for the copies that another one makes."""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source, in the state that they have.

    Args:
        name: the source, as the user named it.
        files: size and time of modification (in ns) by path.
    """

    name: str
    files: Mapping[str, tuple[int, int]]

    @property
    def key(self) -> str:
        """Name of its entry."""
        return ENTRY + hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()[:32]

    @property
    def num_bytes(self) -> int:
        """Room that its copies take up."""
        return sum(-(-size // BLOCK) * BLOCK for size, _ in self.files.values())


def locked(path: Path, shared: bool, wait: bool) -> int:
    """Returns the descriptor of a lock, which closing it releases.

    Raises:
        BlockingIOError: if others have it and `wait` is false.
        DataError: if they do not release it.
        OSError: if it cannot be locked.
    """
    import fcntl

    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    kind, deadline, waits = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, time.monotonic() + WAIT_SECONDS, False
    try:
        while True:
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                if time.monotonic() > deadline:
                    hours = WAIT_SECONDS // 3600
                    raise DataError(f"data.stage_to: another run has held {path} for {hours} hours.") from None
                if not waits:
                    say(f"waiting for another run, which copies its data files to {path.parent}")
                waits = True
                time.sleep(POLL_SECONDS)
            else:
                os.utime(lock)  # the time of its last use
                return lock
    except BaseException:
        os.close(lock)
        raise


def remove_incomplete(folder: Path) -> None:
    """Removes the entries that killed processes were making; no other process may be making any."""
    for entry in filter(is_temporary, folder.glob(f".{ENTRY}*")):
        shutil.rmtree(entry)


def make_room(folder: Path, missing: Sequence[SourceFiles]) -> None:
    """Removes entries that no run holds while there is too little room.

    Raises:
        DataError: if there is too little room without them.
    """
    for entry in unused(folder):
        if not room_problem(folder, missing):
            return
        shutil.rmtree(entry)
        (folder / f"{entry.name}{LOCK}").unlink(missing_ok=True)
    if problem := room_problem(folder, missing):
        raise DataError(problem)


def unused(folder: Path) -> list[Path]:
    """Returns the entries that no run holds, the longest unused first."""
    found = []
    for lock in folder.glob(f"{ENTRY}*{LOCK}") if folder.exists() else ():
        entry = lock.with_suffix("")
        if entry.is_dir():
            with suppress(BlockingIOError, FileNotFoundError):  # used, or just removed by another run
                used = lock.stat().st_mtime
                os.close(locked(lock, shared=False, wait=False))
                os.utime(lock, (used, used))
                found.append((used, entry))
    return [entry for _, entry in sorted(found)]


def size_of(entry: Path) -> int:
    """Returns the bytes that an entry takes up."""
    return sum(file.lstat().st_blocks * 512 for file in entry.rglob("*"))


def room_problem(folder: Path, missing: Sequence[SourceFiles], removable: int = 0) -> str | None:
    """Returns that there is too little room for copies, or None."""
    needed, files = sum(each.num_bytes for each in missing), sum(len(each.files) for each in missing)
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    space = os.statvfs(place)
    free = space.f_bavail * space.f_frsize
    if _is_memory(place.resolve()):
        free = min(free, available_memory())
    advice = "free some, name another folder, or remove data.stage_to."
    if needed > free + removable:
        return f"data.stage_to: the copies need {needed:,} bytes, and {folder} has {free:,} bytes free; {advice}"
    if space.f_files and files > space.f_favail and not removable:
        return f"data.stage_to: there are {files:,} files, and {folder} has room for {space.f_favail:,} more; {advice}"
    return None


def _is_memory(folder: Path) -> bool:
    """Whether a folder's files are in memory, of which this process may use less than the file system has."""
    import psutil

    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    mount = next((each for each in (folder, *folder.parents) if each in mounts), None)
    return mounts.get(mount, "") in ("tmpfs", "ramfs") if mount else False

"""The lock of an output folder: a folder belongs to one run by its name, its file and the process that holds it."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil

from toolkit.base.console import say
from toolkit.base.errors import CheckpointError, RunError
from toolkit.base.files import parse_json, read_file, why
from toolkit.base.run_folder import RunFolder

held_folders: dict[str, OutputLock] = {}
"""The locks that this process holds, by the folder's path without links."""
_HELD = (BlockingIOError, PermissionError)  # POSIX allows EAGAIN and EACCES
EMPTY_SECONDS = 60.0
"""Age from which an owner file without a content is that of a dead process."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FLOCK = "hhqqi4x"
"""Linux's `struct flock`: kind, from where, start, length, process."""


class FolderInUse(CheckpointError):  # noqa: N818 - the name says it
    """Another run holds the lock of an output folder."""


class OutputLock:
    """Context manager that locks an existing output folder.

    It takes a POSIX record lock on `<output_dir>/.lock`. Forked data loader workers do not inherit it, and the kernel
    releases it whenever the process ends, so a dead run leaves no stale lock. Such a lock does not exclude a second
    lock by the same process (hence `held_folders`), and it is lost when the process closes any other descriptor of the
    file (so no other code may open it). The file is never removed, or two runs could lock two different files; if
    someone else moves the folder or removes the file, `require_own` says so before anything is written.

    Where the file system has no such locks (some network file systems), it creates `<output_dir>/.lock.owner` with the
    process's `identity` instead. A dead run of the same boot and container is recognised; after another, the user must
    delete the file, as the message says.

    It waits `patience_seconds` for another run, which needs a moment to save and exit if its launcher was just killed.

    Raises:
        FolderInUse: on entering, if another run holds the lock.
        CheckpointError: on entering, if the folder cannot be locked.
    """

    def __init__(self, output_dir: Path, patience_seconds: float = 0.0) -> None:
        self._patience = patience_seconds
        files = RunFolder(output_dir.absolute())
        self.path, self._owner_file, self._removal = files.lock, files.lock_owner, files.lock_removal
        self._key = os.path.realpath(output_dir)  # a link may lead to another folder later
        self._descriptor = -1
        self._owns_file = False
        self._owner = {**identity(os.getpid()), "since": datetime.now(UTC).isoformat("T", "seconds")}

    def __enter__(self) -> Self:
        if importlib.util.find_spec("fcntl") is None:
            raise CheckpointError("output folders need POSIX file locks: use Linux, macOS or WSL")
        if self._key in held_folders:
            raise FolderInUse(f"this process already runs in the output folder {self.path.parent}")
        try:
            self._descriptor = _open(self.path, os.O_CREAT)
        except OSError as error:
            raise CheckpointError(f"cannot open the lock file {self.path}: {why(error, self.path)}") from error
        owner = json.dumps(self._owner).encode()
        try:
            self._wait()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, owner, 0)
        except OSError as error:
            held = FolderInUse(self._held_message()) if isinstance(error, BlockingIOError) else None
            failure = held or CheckpointError(f"cannot lock {self.path}: {why(error, self.path, len(owner))}")
            self.__exit__()
            raise failure from None
        held_folders[self._key] = self
        return self

    def __exit__(self, *exception: object) -> None:
        held_folders.pop(self._key, None)
        if self._owns_file and self.lost() is None:
            self._owner_file.unlink(missing_ok=True)
        os.close(self._descriptor)

    def lost(self) -> str | None:
        """Returns what has happened if the folder is no longer this run's, else None."""
        held, by_name = os.fstat(self._descriptor), self._owner_file if self._owns_file else None
        try:
            found = self.path.lstat()
            owner = None if by_name is None else parse_json(read_file(by_name))
        except FileNotFoundError as error:
            return f"{error.filename} is gone: the folder was moved or removed, or the file was"
        except (OSError, ValueError):  # as a network file system that does not answer; writing will tell
            return None
        if (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            return f"{self.path} is another file: the folder was replaced, or another run holds it"
        return None if owner in (None, self._owner) else f"{by_name} names another process: {_named(owner)}"

    def _wait(self) -> None:
        """Takes the lock, and waits for it if another run has it."""
        deadline, waiting = time.monotonic() + self._patience, False
        while True:
            try:
                return self._lock()
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                if not waiting:
                    say(f"waiting up to {self._patience:.0f} s: {self._held_message()}")
                waiting = True
                time.sleep(0.2)

    def _lock(self) -> None:
        """Takes the lock; raises BlockingIOError if another process has it."""
        import fcntl

        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if _has_no_locks(error, self._descriptor):
                self._create_owner_file()
            elif isinstance(error, _HELD):
                raise BlockingIOError from error
            else:
                raise

    def _create_owner_file(self) -> None:
        """Creates the file that stands for a lock; raises BlockingIOError if a run has it that may be alive."""
        if is_of_dead_process(self._owner_file):
            self._remove_owner_file()
        try:
            with self._owner_file.open("xb") as file:
                self._owns_file = True
                file.write(json.dumps(self._owner).encode())
        except FileExistsError as error:
            raise BlockingIOError from error

    def _remove_owner_file(self) -> None:
        """Removes the file of a dead run; if several processes try, one does, the others raise BlockingIOError."""
        turn = self._removal
        try:
            os.close(os.open(turn, os.O_CREAT | os.O_EXCL))
        except FileExistsError as error:
            if is_of_dead_process(turn):  # removing takes no time; the next attempt continues
                turn.unlink(missing_ok=True)
            raise BlockingIOError from error
        try:
            if not is_of_dead_process(self._owner_file):  # replaced since it was read
                raise BlockingIOError
            self._owner_file.unlink()
        finally:
            turn.unlink(missing_ok=True)

    def _held_message(self) -> str:
        try:
            by_name = self._owner_file.exists()
            owner = parse_json(read_file(self._owner_file) if by_name else os.pread(self._descriptor, 4096, 0))
            who = _named(owner)
        except (OSError, ValueError, KeyError, TypeError):  # the owner has not written its name yet
            who = "another process"
        by_hand = f". If that run has ended, delete {self._owner_file}" if self._owner_file.exists() else ""
        return (
            f"the output folder {self.path.parent} is in use by {who}: wait for that run to end, stop it, or use "
            f"another output_dir{by_hand}"
        )


def require_own(output_dir: Path) -> None:
    """Raises RunError, before this run writes, if an output folder that it has locked is no longer its own."""
    lock = next((each for each in held_folders.values() if each.path.parent == output_dir.absolute()), None)
    if lock is not None and (what := lock.lost()) is not None:
        raise RunError(
            f"{lock.path.parent} no longer belongs to this run ({what}); the run ends and writes nothing there. If it "
            "was moved, resume it where it is now, with output_dir and checkpoint.resume=auto"
        )


def identity(pid: int) -> dict[str, Any]:
    """Returns what tells a process from every other: containers may share the name of the host and the numbers."""
    found: dict[str, Any] = {"pid": pid, "host": socket.gethostname()}
    with suppress(OSError):
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["namespace"] = str(Path("/proc/self/ns/pid").readlink())
    try:  # in ticks since the boot: the time of psutil changes with the clock
        found["started"] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        found["started"] = "at some time" if psutil.pid_exists(pid) else None
    return found


def _named(owner: Mapping[str, Any]) -> str:
    return f"process {owner['pid']} on {owner['host']} since {owner['since']}"


def _open(path: Path, more_flags: int = 0) -> int:
    """Opens a lock file for reading and writing, without following links or waiting; OSError if it is not regular."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | more_flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _has_no_locks(error: OSError, descriptor: int) -> bool:
    """Whether the file system has no locks: some then return EACCES, as for a lock that another process has."""
    if error.errno != errno.EACCES or sys.platform != "linux":
        return error.errno in _NO_LOCKS
    import fcntl

    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
    except OSError:
        return True
    return kind == fcntl.F_UNLCK


def is_of_dead_process(file: Path) -> bool:
    """Whether a process of this host that has ended, or had this one's number, wrote the file or left it empty.

    A process in another container, or before the last start of the machine, may be one of another machine.
    """
    try:
        content = read_file(file)
        if not content:  # its owner's name follows at once, unless the owner has died before
            return time.time() - file.stat().st_mtime > EMPTY_SECONDS
        owner = parse_json(content)
        now = identity(owner["pid"])
        if any(owner.get(name) != now.get(name) for name in ("host", "boot", "namespace")):
            return False
        return owner["pid"] == os.getpid() or owner["started"] != now["started"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def in_use(output_dir: Path) -> str | None:
    """Returns a message about the process that uses an output folder, or None; writes nothing."""
    lock = OutputLock(output_dir)
    if lock._key in held_folders:
        return f"this process already runs in the output folder {output_dir.absolute()}"
    if importlib.util.find_spec("fcntl") is None or not lock.path.exists():
        return None
    import fcntl

    if lock._owner_file.exists() and not is_of_dead_process(lock._owner_file):
        return lock._held_message()
    try:
        lock._descriptor = _open(lock.path)
    except OSError as error:
        return f"cannot open the lock file {lock.path}: {error.strerror}"
    try:
        fcntl.lockf(lock._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # or the file system has no locks, and no run has the other file
        held = isinstance(error, _HELD) and not _has_no_locks(error, lock._descriptor)
        return lock._held_message() if held else None
    finally:
        os.close(lock._descriptor)
    return None

"""Locks an output folder so that only one run at a time writes into it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from toolkit.base.console import say
from toolkit.base.errors import CheckpointError
from toolkit.base.run_folder import RunFolder

_held: set[str] = set()


class OutputLock:
    """Context manager that locks an existing output folder.

    It takes a POSIX record lock on `<output_dir>/.lock`. Forked data loader workers do not inherit it, and the kernel
    releases it whenever the process ends, so a dead run leaves no stale lock. Such a lock does not refuse a second
    lock by the same process (hence `_held`), and it is lost when the process closes any other descriptor of the file
    (so no other code may open it). The file is never removed, or two runs could lock two different files.

    Args:
        output_dir: the folder.
        patience_seconds: how long to wait for another run to release the lock; a run whose launcher was just killed
            needs a moment to save and exit.

    Raises:
        CheckpointError: on entering, if another run holds the lock or the folder cannot be locked.
    """

    def __init__(self, output_dir: Path, patience_seconds: float = 0.0) -> None:
        self._patience = patience_seconds
        self.path = RunFolder(output_dir.absolute()).lock
        self._key = os.path.realpath(output_dir)
        self._descriptor = -1

    def __enter__(self) -> Self:
        if importlib.util.find_spec("fcntl") is None:
            raise CheckpointError("output folders need POSIX file locks: use Linux, macOS or WSL")
        if self._key in _held:
            raise CheckpointError(f"this process already runs in the output folder {self.path.parent}")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CheckpointError(f"cannot open the lock file {self.path}: {error.strerror}") from error
        try:
            self._lock(time.monotonic() + self._patience)
        except OSError as error:
            held = isinstance(error, BlockingIOError | PermissionError)  # POSIX allows EAGAIN and EACCES
            message = self._held_message() if held else f"cannot lock {self.path}: {error.strerror}"
            os.close(self._descriptor)
            raise CheckpointError(message) from None
        _held.add(self._key)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat("T", "seconds")}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(owner).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _held.discard(self._key)
        os.close(self._descriptor)

    def _lock(self, deadline: float) -> None:
        """Acquires the lock, waiting until the deadline."""
        import fcntl

        waiting = False
        while True:
            try:
                return fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    raise
                if not waiting:
                    say(f"waiting up to {self._patience:.0f} s: {self._held_message()}")
                waiting = True
                time.sleep(0.2)

    def _held_message(self) -> str:
        try:
            owner = json.loads(os.pread(self._descriptor, 4096, 0))
            who = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
        except (ValueError, KeyError, TypeError):  # the owner has not written its name yet
            who = "another process"
        return (
            f"the output folder {self.path.parent} is in use by {who}: wait for that run to end, stop it, or use "
            "another output_dir"
        )


def in_use(output_dir: Path) -> str | None:
    """Returns a message about the process that uses an output folder, or None; writes nothing."""
    lock = OutputLock(output_dir)
    if lock._key in _held:
        return f"this process already runs in the output folder {output_dir.absolute()}"
    if importlib.util.find_spec("fcntl") is None or not lock.path.exists():
        return None
    import fcntl

    with lock.path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            lock._descriptor = file.fileno()
            return lock._held_message()
    return None

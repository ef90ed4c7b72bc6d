"""Only one run at a time writes into an output folder."""

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
    """Context manager that keeps every other run out of an existing output folder.

    A POSIX record lock on `<output_dir>/.lock`: forked data loader workers do not inherit it, and the kernel releases
    it when the process ends in whatever way, so a dead run leaves no stale lock. Two things it does not do: refuse a
    second lock of the same process (hence `_held`), and survive that this process closes any other descriptor of the
    file (so nothing else here may open it). The file stays: removing it would let two runs lock two files.

    Args:
        output_dir: the folder.
        patience_seconds: how long to wait for another run that has it: one whose launcher was just killed needs a
            moment to save and end.

    Raises:
        CheckpointError: on entering, when another run has the folder, or it cannot be locked.
    """

    def __init__(self, output_dir: Path, patience_seconds: float = 0.0) -> None:
        self._patience = patience_seconds
        self.path = RunFolder(output_dir.absolute()).lock
        self._key = os.path.realpath(output_dir)
        self._descriptor = -1

    def __enter__(self) -> Self:
        if importlib.util.find_spec("fcntl") is None:
            raise CheckpointError("output folders are locked the POSIX way: use Linux, macOS or WSL")
        if self._key in _held:
            raise CheckpointError(f"this process already runs in the output folder {self.path.parent}")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CheckpointError(f"cannot open the lock file {self.path}: {error.strerror}") from error
        try:
            self._lock(time.monotonic() + self._patience)
        except OSError as error:
            held = isinstance(error, BlockingIOError | PermissionError)  # EAGAIN or EACCES, as POSIX leaves open
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
        """Takes the lock, waiting for it until the deadline."""
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
        except (ValueError, KeyError, TypeError):  # it has the lock, but has not written yet
            who = "another process"
        return (
            f"the output folder {self.path.parent} is in use by {who}: wait until that run has ended, stop it, or give "
            "another output_dir"
        )


def in_use(output_dir: Path) -> str | None:
    """Returns who runs in an output folder, as a message, or None; nothing is written."""
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

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

LOCK = ".lock"


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
        self.path = output_dir.absolute() / LOCK
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


def probe(output_dir: Path) -> None:
    """Makes the output folder where it does not exist, and writes and removes a file in it.

    Raises:
        CheckpointError: when that is not possible, with the absolute path and the reason.
    """
    file = output_dir / f".probe-{os.getpid()}"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"probe")
        file.unlink()
    except OSError as error:
        existing = next(path for path in (output_dir, *output_dir.absolute().parents) if path.exists())
        reason = error.strerror if existing.is_dir() else f"{existing} is a file"
        raise CheckpointError(
            f"output_dir: cannot write into {output_dir.absolute()}: {reason}; give another one, or mend this one"
        ) from error

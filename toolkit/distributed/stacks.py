"""Writes the stacks of all threads of ranks, also of one that is stopped."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from toolkit.distributed.beats import Peer

POLL_SECONDS = 0.05
WAIT_SECONDS = 2.5
"""How long a rank may take to write its stacks after it was asked to."""


class StackFile:
    """A file in memory into which this process writes its stacks when it gets a signal, without Python's help (Linux).

    A rank that is stopped cannot write into the run's folder by itself. Another one makes it continue with that signal
    waiting, and reads the file of the process.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("stacks")
            faulthandler.register(_signal(), self.descriptor, all_threads=True)

    def close(self) -> None:
        """Restores what the signal does."""
        if self.descriptor is not None:
            faulthandler.unregister(_signal())
            os.close(self.descriptor)


def write_own(folder: Path, rank: int) -> None:
    """Writes the stacks of this process into a folder."""
    with suppress(OSError), stacks_file(folder, rank).open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)


def fetch(folder: Path, peer: Peer) -> None:
    """Makes a process of this machine write its stacks and copies them into a folder; lets it go on if it is stopped.

    Args:
        folder: the folder.
        peer: the process.
    """
    if peer.stacks is None:
        return
    source = Path(f"/proc/{peer.pid}/fd/{peer.stacks}")
    with suppress(OSError):
        os.kill(peer.pid, _signal())
        os.kill(peer.pid, signal.SIGCONT)
        _copy(source, folder, peer.rank)


def _copy(source: Path, folder: Path, rank: int) -> None:
    """Copies a process's file when it no longer grows, or what was last read of it if the process ends before that."""
    text, until = b"", time.monotonic() + WAIT_SECONDS
    with suppress(OSError):
        while time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            before, text = text, source.read_bytes()
            if text and text == before:
                break
    if text:
        stacks_file(folder, rank).write_bytes(text)


def stacks_file(folder: Path, rank: int) -> Path:
    """Returns the file of a rank's stacks, whose folder exists then."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"rank{rank}.txt"


def _signal() -> int:
    """Returns the signal that asks for the stacks: one that no library uses."""
    return signal.SIGRTMIN + 5

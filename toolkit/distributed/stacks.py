"""Writes the stacks of ranks, also of one that is stopped."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from toolkit.distributed.beats import Peer

POLL_SECONDS = 0.05
WAIT_SECONDS = 2.5
"""How long a rank may take to write its stacks after it was asked to."""

MAX_BYTES = 2**20


class StackFile:
    """A file in memory into which the main thread writes its stack at a signal, without Python's help (Linux).

    A rank that is stopped cannot write into the run's folder by itself. Another one makes it continue with that signal
    waiting, and reads the file of the process. The other threads are left out: they run meanwhile, and reading the
    frames of a running thread can crash the process.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("stacks")
            faulthandler.register(_signal(), self.descriptor, all_threads=False)

    def close(self) -> None:
        """Restores what the signal does."""
        if self.descriptor is not None:
            faulthandler.unregister(_signal())
            os.close(self.descriptor)


def write_own(folder: Path, rank: int) -> None:
    """Writes the stacks of all threads of this process into a folder."""
    with suppress(OSError):
        file = _stacks_file(folder, rank)
        incomplete = file.with_suffix(".tmp")  # the process may be killed at any time
        with incomplete.open("w") as opened:
            faulthandler.dump_traceback(opened, all_threads=True)
        incomplete.replace(file)


def fetch(folder: Path, peer: Peer) -> None:
    """Makes a process of this machine write its main thread's stack; lets the process go on if it is stopped.

    The stack is copied into a folder, unless the process has written those of all its threads there by itself.

    Args:
        folder: the folder.
        peer: the process.
    """
    if peer.stacks is None:
        return
    with suppress(OSError), Path(f"/proc/{peer.pid}/fd/{peer.stacks}").open("rb") as opened:  # outlives the process
        _signal_main_thread(peer.pid)
        os.kill(peer.pid, signal.SIGCONT)
        if text := _written(opened):
            with _stacks_file(folder, peer.rank).open("xb") as file:
                file.write(text)


def _signal_main_thread(pid: int) -> None:
    """Sends the signal to the main thread; one for a process that is stopped may be handled by any of its threads."""
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
    if tgkill is None:  # a C library that lacks it
        os.kill(pid, _signal())
    else:
        tgkill(pid, pid, _signal())


def _written(file: BinaryIO) -> bytes:
    """Returns what is in a file when it no longer grows."""
    text, until = b"", time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        before, text = text, os.pread(file.fileno(), MAX_BYTES, 0)
        if text and text == before:
            break
    return text


def _stacks_file(folder: Path, rank: int) -> Path:
    """Returns the file of a rank's stacks, whose folder exists then."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"rank{rank}.txt"


def _signal() -> int:
    """Returns the signal that asks for the stacks: one that no library uses."""
    return signal.SIGRTMIN + 5

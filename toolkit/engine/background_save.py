"""Writes one checkpoint at a time in a thread, while training goes on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from toolkit.base.console import warn
from toolkit.base.errors import ToolkitError
from toolkit.base.processes import STOP_SIGNALS

if TYPE_CHECKING:
    from toolkit.checkpoint.planning import Copy

PATIENCE_SECONDS = 60.0
"""How long a run that failed waits for a checkpoint that other processes, which may be gone, write too."""


class BackgroundSave:
    """A thread that writes a checkpoint; at the end of the block it has ended.

    Args:
        num_processes: number of processes that write together.
    """

    def __init__(self, num_processes: int = 1) -> None:
        self._num_processes = num_processes
        self._thread: threading.Thread | None = None
        self._copy: Copy | None = None
        self._error: BaseException | None = None
        self.written_at: float | None = None
        """Time (`time.monotonic`) when the last checkpoint was complete, or None."""

    def __enter__(self) -> BackgroundSave:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._thread is None:
            return
        # After an error of this process alone, others may be gone, which write the checkpoint too.
        alone = error is not None and not (isinstance(error, ToolkitError) and error.shared)
        self._thread.join(PATIENCE_SECONDS if alone and self._num_processes > 1 else None)
        if self._error is not None and self._error is not error:
            warn(f"{self._error}.")
        elif self._thread.is_alive():
            warn(f"the checkpoint in flight is not complete after {PATIENCE_SECONDS:.0f} s; the one before it is kept")

    def start(self, copy: Copy, write: Callable[[], None]) -> None:
        """Starts a thread that completes copies and writes them; `join` must have been called after the one before.

        Args:
            copy: completes the copies.
            write: writes them.
        """
        assert self._thread is None, "one checkpoint at a time"
        self._copy = copy
        self._thread = threading.Thread(target=self._run, args=(copy, write), name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> bool:
        """Whether a checkpoint was started and `join` not called yet."""
        return self._thread is not None

    @property
    def has_failed(self) -> bool:
        """Whether the checkpoint cannot be written; `join` raises why."""
        return self._error is not None

    @property
    def is_written(self) -> bool:
        """Whether the checkpoint is complete, and `join` returns at once."""
        return self._thread is not None and not self._thread.is_alive() and not self.has_failed

    @property
    def is_copying(self) -> bool:
        """Whether `wait_for_copy` must be called before what is saved changes."""
        return self._copy is not None

    def wait_for_copy(self) -> None:
        """Returns when what is saved may change."""
        if self._copy is not None:
            self._copy.wait()
            self._copy = None

    def join(self) -> None:
        """Waits until the checkpoint is written.

        Raises:
            ToolkitError: if it cannot be written.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = self._copy = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, copy: Copy, write: Callable[[], None]) -> None:
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they must reach the main thread, which may wait
        try:
            copy.run()
            write()
            self.written_at = time.monotonic()
        except BaseException as error:  # raised by `join`
            self._error = error

"""Stop signals, on which all ranks agree."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from toolkit.base.errors import Interrupted
from toolkit.base.processes import ECHO_SECONDS, STOP_SIGNALS, Thread, heeded_signals, leave_closed_terminal

POLL_SECONDS = 0.2
ELASTIC_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
ELASTIC_SECONDS = 30.0
"""Seconds that torchrun and `accelerate launch` wait after SIGTERM before they kill, unless the variable says more."""
STOP_DEADLINE_SECONDS = 10.0
"""Seconds without a `beat` after which a rank ends then, since it may wait for a dead one: well before it is killed."""

_active: list[StopSignal] = []
"""The stop signals of the training that runs in this process, if any."""


def launcher_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Returns the seconds after SIGTERM after which torchrun and `accelerate launch` kill a run."""
    try:
        return float(environ[ELASTIC_TIMEOUT])
    except (KeyError, ValueError):  # the launcher, which reads it too, says what is wrong with it
        return ELASTIC_SECONDS


def stop_deadline(environ: Mapping[str, str] = os.environ) -> float:
    """Returns the seconds without a `beat` after which a rank that was told to stop ends; more under some launchers."""
    seconds = launcher_seconds(environ)
    return max(seconds / 3, seconds - 2 * STOP_DEADLINE_SECONDS)


def active_stop() -> StopSignal | None:
    """Returns the stop signals of the training that runs in this process."""
    return _active[-1] if _active else None


class StopSignal:
    """Turns stop signals into a flag that the run checks between steps; a second one ends the process at once.

    When a rank dies, torchrun and `accelerate launch` send SIGTERM to the others, which may wait for the dead one
    inside a collective, where no Python handler runs. A thread therefore receives the signal through the wake-up file
    descriptor, and ends the process if there was no `beat` within the deadline, until `disarm` is called. Other
    launchers send a stop signal only to stop the run, so that a step may take as long as it needs.
    """

    def __init__(self, num_processes: int) -> None:
        self.received = 0
        """The first stop signal, or 0."""
        self._first, self._last_beat = math.inf, 0.0
        self._unhurried = False
        # Python lets only the main thread handle signals: a run in another thread is not stopped by them.
        self._installs = threading.current_thread() is threading.main_thread()
        self._watched = num_processes > 1 and "TORCHELASTIC_RUN_ID" in os.environ
        self._disarmed = threading.Event()

    def __enter__(self) -> StopSignal:
        _active.append(self)
        if not self._installs:
            return self
        self._previous = {number: signal.signal(number, self._handle) for number in heeded_signals()}
        if self._watched:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._previous_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._thread = Thread(self._watch, "stop")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._disarmed.set()
        _active.remove(self)
        if not self._installs:
            return
        for owner in {getattr(handler, "__self__", None) for handler in self._previous.values()}:
            if isinstance(owner, DeferredStop) and kind is None:
                owner.take_over(self.received)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._watched:
            signal.set_wakeup_fd(self._previous_writer)
            os.close(self._writer)  # which also ends the thread
            self._thread.join()
            os.close(self._reader)

    def receive(self, number: int) -> None:
        """Notes a stop signal that another rank of the run has received."""
        if not self.received and number in STOP_SIGNALS:
            self.received = number  # this rank's own signal is still its first, however late it is handled

    def beat(self) -> None:
        """Signals that this process is alive, which renews the deadline."""
        self._last_beat = time.monotonic()

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Suspends the deadline while the other processes wait for one of them."""
        self._unhurried = True
        yield
        self._unhurried = False
        self.beat()

    def disarm(self) -> None:
        """Cancels the deadline: all processes have agreed to stop, and saving may take longer."""
        self._disarmed.set()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        leave_closed_terminal()
        now = time.monotonic()
        if now - self._first > ECHO_SECONDS:
            os._exit(128 + self.received)
        self.received, self._first = self.received or signum, min(self._first, now)

    def _watch(self) -> None:
        while received := os.read(self._reader, 1):
            if received[0] in STOP_SIGNALS:
                self.beat()
                break
        deadline = stop_deadline()
        while received and not self._disarmed.wait(POLL_SECONDS):
            if not self._unhurried and time.monotonic() - self._last_beat > deadline:
                os._exit(128 + received[0])


class DeferredStop:
    """Keeps a stop signal after training until the model is written; from then on, the signal ends the run at once.

    During training, the handlers of `StopSignal` replace these. Before, the previous handlers apply. `resume` says how
    the run can be finished later; empty if it cannot.
    """

    def __init__(self, resume: str) -> None:
        self._resume = resume
        self._received = 0
        self._first = 0.0
        self._is_trained = self._is_kept = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> DeferredStop:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in heeded_signals()}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def take_over(self, received: int) -> None:
        """Begins to keep signals: training is over, in which `received` came too late, or 0."""
        self._is_trained, self._received, self._first = True, received, time.monotonic()

    def model_is_kept(self) -> None:
        """Raises Interrupted if a signal has arrived, now that the model is written; later signals raise it at once."""
        self._is_kept = True
        if self._received:
            self._interrupt()

    def _interrupt(self) -> NoReturn:
        what = f"Stopped by {STOP_SIGNALS[signal.Signals(self._received)]} after training: the model is written, but "
        advice = "" if self._resume else " `toolkit evaluate` and `toolkit predict` can use it."
        raise Interrupted(f"{what}not all results are.{advice}", self._resume, self._received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._is_trained:
            signal.signal(signum, self._previous[signum])
            signal.raise_signal(signum)
            return
        leave_closed_terminal()
        now = time.monotonic()
        if self._received and now - self._first > ECHO_SECONDS:
            os._exit(128 + self._received)
        if not self._received:
            self._received, self._first = signum, now
            if self._is_kept:
                self._interrupt()

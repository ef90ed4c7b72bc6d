"""Ends loader workers that are stopped, for which a process would wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from toolkit.base.console import warn
from toolkit.system.activity import SHORTAGE, Activity

BEATS_PER_TIMEOUT = 20
LONGEST_PAUSE = 1.0
"""Seconds between two beats, at most."""


@contextmanager
def watched_workers(timeout: float) -> Iterator[None]:
    """Watches the loader workers of a single process."""
    ended, activity = threading.Event(), Activity()

    def watch() -> None:
        pause, last = pause_between(timeout), time.monotonic()
        while not ended.wait(pause):
            now = time.monotonic()
            with suppress(*SHORTAGE):  # the process goes on, or will end with a message of its own
                activity.tick(min(now - last, 2 * pause))
                end_stopped_workers(activity, timeout)
            last = now

    thread = threading.Thread(target=watch, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pause_between(timeout: float) -> float:
    """Returns the seconds between two beats."""
    return min(timeout / BEATS_PER_TIMEOUT, LONGEST_PAUSE)


def end_stopped_workers(activity: Activity, timeout: float) -> None:
    """Kills workers that are stopped while this process waits, so that it gets an error instead of waiting for ever."""
    for worker, seconds in activity.stopped.items():
        if seconds >= timeout:
            warn(f"process {worker.pid}, a worker of this run, is stopped (SIGSTOP) for {timeout:g} s; it is killed.")
            with suppress(psutil.Error):
                worker.kill()

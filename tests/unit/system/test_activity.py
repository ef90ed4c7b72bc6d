"""How long a process has been idle, and which of its children are stopped."""

from __future__ import annotations

import errno
import signal
import subprocess
import threading
from collections.abc import Iterator

import psutil
import pytest

from toolkit.distributed import watchdog
from toolkit.distributed.watchdog import end_stopped_workers, watched_workers
from toolkit.system.activity import Activity, task_for_all

LONG = 1e6
"""Seconds per look, so that this process has been idle whatever else it does."""


@pytest.fixture
def stopped_child() -> Iterator[subprocess.Popen]:
    with subprocess.Popen(["sleep", "60"]) as child:
        child.send_signal(signal.SIGSTOP)
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            pass
        yield child
        child.kill()


def test_a_stopped_worker_is_found_during_a_task_for_all(stopped_child, monkeypatch) -> None:
    activity = Activity()
    monkeypatch.setattr(activity, "uses_disk", lambda: False)
    with task_for_all():
        assert [activity.tick(LONG) for _ in range(2)] == [0.0, 0.0]
        assert {child.pid: seconds for child, seconds in activity.stopped.items()} == {stopped_child.pid: 2 * LONG}
        end_stopped_workers(activity, 3 * LONG)
        assert stopped_child.poll() is None
        end_stopped_workers(activity, 2 * LONG)
    assert stopped_child.wait(30) == -signal.SIGKILL
    assert activity.tick(LONG) == LONG  # the task before does not count
    assert activity.stopped == {}


@pytest.mark.parametrize(("share", "seconds"), [(0.1, LONG), (0.5, 0.0)])
def test_a_process_that_looks_at_its_workers_again_and_again_waits_for_them(
    share, seconds, stopped_child, monkeypatch
) -> None:
    used = iter([0.0, share * LONG])
    monkeypatch.setattr(Activity, "cpu_seconds", lambda self: next(used))
    activity = Activity()
    assert activity.tick(LONG) == 0.0
    assert sum(activity.stopped.values()) == seconds


SHORTAGES = [MemoryError(), OSError(errno.EMFILE, "Too many open files"), psutil.AccessDenied(1)]


@pytest.mark.parametrize("error", SHORTAGES)
def test_a_process_that_cannot_be_asked_is_not_idle(error, monkeypatch) -> None:
    def refuse(*arguments: object, **settings: object) -> None:
        raise error

    activity = Activity()
    monkeypatch.setattr(psutil.Process, "children", refuse)
    assert activity.tick(LONG) == 0.0


@pytest.mark.parametrize("error", SHORTAGES)
def test_a_shortage_does_not_end_the_watch_of_a_single_process(error, monkeypatch) -> None:
    rounds, enough = list[float](), threading.Event()

    def tick(self: Activity, elapsed: float) -> float:
        rounds.append(elapsed)
        if len(rounds) == 3:
            enough.set()
        raise error

    monkeypatch.setattr(Activity, "tick", tick)
    monkeypatch.setattr(watchdog, "LONGEST_PAUSE", 0.01)
    with watched_workers(60.0):
        assert enough.wait(60)

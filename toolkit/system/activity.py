"""Whether processes of this machine compute, wait or are stopped, also while they start."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

LEAST_SHARE = 0.02
"""Share of one core below which a process is idle: threads of libraries look around now and then."""
WAITING_SHARE = 0.2
"""Share of one core below which a process may wait for its children, at which it looks again and again."""
WAITING_FILES = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/", "/torch/_ops.py",
                 "/toolkit/system/rank_order.py")  # fmt: skip
"""Python files in which a thread waits for other processes. The backward pass exchanges gradients."""

SHORTAGE = (MemoryError, OSError, psutil.Error)
"""Errors of questions to the system when memory or open files are short, or a process has just ended."""

_tasks_for_all = 0
_lock = threading.Lock()  # a thread that writes a checkpoint has tasks, too


@contextmanager
def task_for_all() -> Iterator[None]:
    """Marks work of one process for all others, which wait for it; it may wait for a disk or a network itself."""
    global _tasks_for_all
    with _lock:
        _tasks_for_all += 1
    try:
        yield
    finally:
        with _lock:
            _tasks_for_all -= 1


def has_task_for_all() -> bool:
    """Whether this process works for all others now."""
    return _tasks_for_all > 0


def machine_id() -> str:
    """Returns an identifier of this machine, or of the container in which process ids have their meaning."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def waits_for_others(thread: int) -> bool:
    """Whether a thread of this process is inside a collective, or waits for another process's work."""
    frame = sys._current_frames().get(thread)
    return frame is not None and any(part in frame.f_code.co_filename for part in WAITING_FILES)


def disk_bytes(process: psutil.Process) -> tuple[int, int]:
    """Returns the bytes that a process has read from and written to disks; zeros where the system does not say."""
    if not hasattr(process, "io_counters"):
        return 0, 0
    with suppress(psutil.Error, OSError):
        counted = process.io_counters()
        return counted.read_bytes, counted.write_bytes
    return 0, 0


class Activity:
    """Measures how long this process has been idle, without the thread that calls this.

    A process is idle if it and its children (loader workers, compilers) used less than `LEAST_SHARE` of a core and
    neither read from nor wrote to a disk.
    """

    def __init__(self) -> None:
        self.idle = 0.0
        """Seconds for which this process has been idle and had no task for all."""
        self._own = psutil.Process()
        self._cpu = self.cpu_seconds()
        self._disk = disk_bytes(self._own)
        self._children: dict[int, float] = {}
        self.stopped: dict[psutil.Process, float] = {}
        """Children that are stopped, and for how long this process has seen them so without computing much itself."""

    def tick(self, elapsed: float) -> float:
        """Returns for how many seconds this process has been idle, `elapsed` seconds after the last call."""
        before, self._cpu = self._cpu, self.cpu_seconds()
        used = self._cpu - before
        busy = used > LEAST_SHARE * elapsed or has_task_for_all()
        try:
            busy |= self.uses_disk()
            if used < WAITING_SHARE * elapsed:  # looking at all children takes time
                busy |= self._child_computes(elapsed)
        except SHORTAGE:  # if in doubt, don't kill the process
            busy = True
        self.idle = 0.0 if busy else self.idle + elapsed
        return self.idle

    def cpu_seconds(self) -> float:
        """Returns the CPU time of this process without the calling thread."""
        return time.process_time() - time.thread_time()

    def uses_disk(self) -> bool:
        """Returns whether this process has used a disk since the last call, or waits for one."""
        before, self._disk = self._disk, disk_bytes(self._own)
        return self._disk != before or self._own.status() == psutil.STATUS_DISK_SLEEP

    def _child_computes(self, elapsed: float) -> bool:
        before, self._children, busy = self._children, {}, False
        stopped, self.stopped = self.stopped, {}
        for child in self._own.children(recursive=True):
            with suppress(psutil.Error):
                used = sum(child.cpu_times()[:2])
                self._children[child.pid] = used
                busy |= used - before.get(child.pid, 0.0) > LEAST_SHARE * elapsed
                state = child.status()
                busy |= state == psutil.STATUS_DISK_SLEEP
                if state == psutil.STATUS_STOPPED:
                    self.stopped[child] = stopped.get(child, 0.0) + elapsed
        return busy


class Neighbour:
    """Another process of this machine, as the system sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        self._cpu = 0.0
        with suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def tick(self, elapsed: float) -> str:
        """Returns `ended`, `stopped`, `computes` or `idle`; `elapsed` seconds have passed since the last call."""
        if self._process is None:
            return "ended"
        try:
            state = self._process.status()
            before, self._cpu = self._cpu, sum(self._process.cpu_times()[:2])
        except psutil.Error:
            return "ended"
        if state in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or not self._process.is_running():
            return "ended"
        if state == psutil.STATUS_STOPPED:
            return "stopped"
        # Somebody looks at a traced process with a debugger.
        computes = state in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP, psutil.STATUS_TRACING_STOP)
        return "computes" if computes or self._cpu - before > LEAST_SHARE * elapsed else "idle"

    def end(self) -> None:
        """Kills the process and its children."""
        with suppress(psutil.Error):
            if self._process is not None and self._process.is_running():
                for process in [*self._process.children(recursive=True), self._process]:
                    with suppress(psutil.Error):
                        process.kill()


def end_children() -> None:
    """Kills all children of this process."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()


FIRST_BEAT = "TOOLKIT_FIRST_BEAT"
"""Names the descriptor through which the ranks of our own launcher tell it that their heartbeat begins."""
LIMIT_SECONDS = 120.0
"""How long a rank may be stopped while others are not: the default of `train.heartbeat_timeout`, which is not known."""
LOOK_SECONDS = 1.0


def heartbeat_has_begun() -> None:
    """Tells our own launcher, if it has started this process, that it need not look for stopped ranks any more."""
    number = os.environ.pop(FIRST_BEAT, None)
    if number is not None:
        with suppress(OSError, ValueError):
            descriptor = int(number)
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b".")
                os.close(descriptor)


class StartWatch:
    """The launcher's watch over the start of its ranks; a context manager."""

    def __init__(self) -> None:
        self._told, self.descriptor = os.pipe()
        os.set_blocking(self._told, False)
        self.ranks: list[Neighbour] = []
        self._stopped: list[float] = []
        self._since_look = 0.0

    def __enter__(self) -> StartWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._told)
        os.close(self.descriptor)

    def begin(self, pids: Sequence[int]) -> None:
        """Looks at these processes from now on, in the order of their ranks."""
        self.ranks, self._stopped = [Neighbour(pid) for pid in pids], [0.0] * len(pids)

    def problem(self, elapsed: float) -> str:
        """Returns a message about ranks that were stopped for too long while others were not, or nothing.

        `elapsed` are the seconds since the last call, in which this process was not stopped itself.
        """
        self._since_look += elapsed
        if self._since_look < LOOK_SECONDS:
            return ""
        with suppress(BlockingIOError):
            if os.read(self._told, 1):
                self.ranks = []
        states = [rank.tick(self._since_look) for rank in self.ranks]
        all_are = set(states) == {"stopped"}  # and wait to be continued
        for rank, state in enumerate(states):
            self._stopped[rank] = self._stopped[rank] + self._since_look if state == "stopped" and not all_are else 0.0
        self._since_look = 0.0
        found = [rank for rank in range(len(states)) if self._stopped[rank] >= LIMIT_SECONDS]
        if not found:
            return ""
        names = " and ".join(f"rank {rank} (process {self.ranks[rank].pid})" for rank in found)
        return (
            f"{names} stopped (SIGSTOP) for {LIMIT_SECONDS:g} s before all ranks had met, while others waited: the run "
            "ends on all ranks. Find out what stopped it, and start the run again."
        )

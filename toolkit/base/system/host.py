"""Reads what this process and its children use of the machine, and how busy the machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

CHILDREN = Path("/proc/self/task")


@dataclass(frozen=True)
class _Counts:
    """Sums since the start of the process or the machine; a counter that the system does not have stays 0."""

    time: float
    cpu: float
    machine_busy: float
    machine_all: float
    read: int
    written: int
    sent: int
    received: int


class Host:
    """Reads the use of the processor, memory, disk and network; rates are those since the last reading."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._children: dict[int, tuple[float, int, int]] = {}
        self._of_children = [0.0, 0, 0]
        self._last = self._first = self._counts()

    def busy_seconds(self) -> float:
        """Returns the processor time of this process and its children since this object was built, in seconds."""
        return max(0.0, time.process_time() + self._add_children()[0] - self._first.cpu)

    def resident(self) -> int:
        """Returns the resident memory of this process in bytes."""
        return int(self._own.memory_info().rss)

    def read(self) -> dict[str, float]:
        """Returns the use since the last reading.

        Returns:
            `cpu_cores`: logical processors that this process and its children used on average; `memory_bytes`:
            resident memory of the process; `disk_read_bytes_per_second` and `disk_written_bytes_per_second` of the
            process and its children; `network_sent_bytes_per_second` and `network_received_bytes_per_second` of the
            machine, without its loopback; `machine_cpu_percent` and `machine_memory_percent`.
        """
        before, now = self._last, self._counts()
        self._last = now
        elapsed = max(1e-6, now.time - before.time)
        whole = now.machine_all - before.machine_all
        return {
            "cpu_cores": max(0.0, now.cpu - before.cpu) / elapsed,
            "memory_bytes": self.resident(),
            "disk_read_bytes_per_second": max(0, now.read - before.read) / elapsed,
            "disk_written_bytes_per_second": max(0, now.written - before.written) / elapsed,
            "network_sent_bytes_per_second": max(0, now.sent - before.sent) / elapsed,
            "network_received_bytes_per_second": max(0, now.received - before.received) / elapsed,
            "machine_cpu_percent": 100 * (now.machine_busy - before.machine_busy) / whole if whole > 0 else 0.0,
            "machine_memory_percent": psutil.virtual_memory().percent,
        }

    def _counts(self) -> _Counts:
        times = psutil.cpu_times()
        every = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # are in `user`
        sent, received = _network()
        cpu, read, written = self._add_children()
        own_read, own_written = _disk(self._own)
        return _Counts(
            time=time.monotonic(),
            cpu=time.process_time() + cpu,
            machine_busy=every - times.idle - getattr(times, "iowait", 0.0),
            machine_all=every,
            read=own_read + read,
            written=own_written + written,
            sent=sent,
            received=received,
        )

    def _add_children(self) -> tuple[float, int, int]:
        """Returns processor time and bytes of the children so far, also of those that have ended in between."""
        before, self._children = self._children, {}
        for pid in _child_ids(self._own):
            with suppress(psutil.Error, OSError):
                child = psutil.Process(pid)
                now = (sum(child.cpu_times()[:2]), *_disk(child))
                for place, (value, former) in enumerate(zip(now, before.get(pid, (0.0, 0, 0)), strict=True)):
                    self._of_children[place] += max(0, value - former)
                self._children[pid] = now
        cpu, read, written = self._of_children
        return cpu, int(read), int(written)


def _child_ids(own: psutil.Process) -> Iterator[int]:
    """Yields the children that the main thread has started, loader workers among them.

    Looking for them among all processes, as psutil does, takes long where there are many.
    """
    try:
        yield from map(int, (CHILDREN / str(threading.main_thread().native_id) / "children").read_text().split())
    except OSError:  # not Linux, or a kernel without this list
        with suppress(psutil.Error, OSError):
            yield from (child.pid for child in own.children())


def _disk(process: psutil.Process) -> tuple[int, int]:
    """Returns the bytes that a process has read from and written to disks; zeros where the system does not say."""
    if not hasattr(process, "io_counters"):
        return 0, 0
    with suppress(psutil.Error, OSError):
        counted = process.io_counters()
        return counted.read_bytes, counted.write_bytes
    return 0, 0


def _network() -> tuple[int, int]:
    """Returns the bytes that the machine has sent and received, without its loopback."""
    with suppress(psutil.Error, OSError):
        cards = [c for name, c in psutil.net_io_counters(pernic=True, nowrap=False).items() if name != "lo"]
        return sum(card.bytes_sent for card in cards), sum(card.bytes_recv for card in cards)
    return 0, 0

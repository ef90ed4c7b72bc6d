"""A thread that samples what a process uses and writes it to a file, line by line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from toolkit.base.console import warn
from toolkit.base.disk import why
from toolkit.base.system.energy import Estimate, Rapl
from toolkit.base.system.gpu import Gpu
from toolkit.base.system.host import Host
from toolkit.base.vitals import LEAST_SHARE, SHORTAGE

if TYPE_CHECKING:
    import torch

LIMIT_SECONDS = 5.0
"""How long the end of a run waits for a reading that does not return, for instance of a driver that hangs."""
TAIL = 2**16
"""Bytes at the end of a file in which an incomplete line is looked for; a line is much shorter."""
LEAST_SECONDS = 0.05
"""A shorter time before the end of a run has no rates worth a line."""
DIGITS = 3


@dataclass(frozen=True)
class _Point:
    """Sums up to a moment: of the clock and of processor time in seconds, and of energy in joules."""

    time: float
    busy: float
    joules: float


class SystemWatch:
    """Samples this process until it is closed; a context manager.

    Sampling never ends or delays a run: if a file cannot be written, there is a warning and no more lines, and a
    reading that does not return is given up.

    Args:
        interval: seconds between samples; None measures time only.
        rank: of the process.
        device: its device.
    """

    def __init__(self, interval: float | None = None, rank: int = 0, device: torch.device | None = None) -> None:
        self.interval, self.rank = interval, rank
        self._began = 0.0
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._file: IO[bytes] | None = None
        self._step: Callable[[], int] = int
        self._joules: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._waiting = bytearray()
        if interval is None:
            return
        self._host = Host()
        self._last = self._counted = _Point(time.monotonic(), 0.0, 0.0)
        self._gpu = Gpu.of(device)
        self._rapl, self._estimate = Rapl.of(), Estimate(rank)
        self._unread_gpu = device is not None and device.type == "cuda" and self._gpu is None

    def __enter__(self) -> SystemWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def source(self) -> str | None:
        """Where the figures of energy come from, in words; None if nothing is sampled."""
        if self.interval is None:
            return None
        words = [(self._rapl or self._estimate).source]
        if self._gpu is not None:
            words.append("GPU: measured (NVML)")
        if self._unread_gpu:
            words.append("the GPU is not included, because its power cannot be read (pip install "
                         "'finetune-toolkit[system]')")  # fmt: skip
        return "; ".join(words)

    @property
    def seconds(self) -> float:
        """Time since `begin`, in seconds."""
        return time.monotonic() - self._began if self._began else 0.0

    def begin(self, path: Path, step: Callable[[], int]) -> None:
        """Starts to measure, and to write samples; the first one describes the time since this object was built.

        Args:
            path: the file; lines are added to one that exists.
            step: returns the step that the run has come to.
        """
        self._began = time.monotonic()
        if self.interval is None:
            return
        self._step = step
        self._open(path)
        self._guarded(self._sample)
        self._before = dict(self._joules)
        self._thread = threading.Thread(target=self._run, args=(self.interval,), name="system", daemon=True)
        self._thread.start()

    def joules(self) -> dict[str, float]:
        """Returns the energy since `begin` by what was measured; processes of a machine share some of the names."""
        if self._thread is not None:
            self._guarded(self._count)
        return {name: value - self._before.get(name, 0.0) for name, value in self._joules.items()}

    def end(self) -> None:
        """Takes the last sample and makes sure that the file is on the disk."""
        if self._thread is None:
            return
        self._guarded(self._count if time.monotonic() - self._last.time < LEAST_SECONDS else self._sample)
        self.close(synced=True)

    def close(self, synced: bool = False) -> None:
        """Ends the thread; with `synced`, the file is flushed to the disk."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ended.set()
        thread.join(LIMIT_SECONDS)
        if not self._lock.acquire(timeout=LIMIT_SECONDS):
            return
        self._write_waiting()
        file, self._file = self._file, None
        self._lock.release()
        if file is None:
            return
        try:
            if synced:
                os.fsync(file.fileno())
            file.close()
        except OSError as error:
            warn(f"{file.name} may be incomplete: {why(error, Path(file.name))}")

    def _run(self, interval: float) -> None:
        while not self._ended.wait(interval):
            self._guarded(self._sample)

    def _open(self, path: Path) -> None:
        """Opens the file, without an incomplete line of a process that was killed."""
        try:
            self._file = path.open("ab", buffering=0)
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(max(0, size - TAIL))
                tail = file.read()
            if rest := len(tail) - (tail.rfind(b"\n") + 1):
                os.truncate(path, size - rest)
        except OSError as error:
            self._stop_writing(path, error)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Calls a function that reads, unless another reading does not return."""
        if not self._lock.acquire(timeout=LIMIT_SECONDS):
            return
        try:
            work()
        except SHORTAGE:  # the run goes on, or ends with a message of its own
            return
        finally:
            self._lock.release()

    def _sample(self) -> None:
        """Adds a line, and writes it if this process computes."""
        before, self._last = self._last, self._count()
        line: dict[str, float] = {
            "time": round(time.time(), 3),
            "seconds": self._last.time - self._began,
            "rank": self.rank,
            "step": self._step(),
            **self._host.read(),
        }
        if self._gpu is not None:
            line |= self._gpu.read()
        elapsed = max(1e-6, self._last.time - before.time)
        line["watts"] = (self._last.joules - before.joules) / elapsed
        self._waiting += json.dumps({name: round(value, DIGITS) for name, value in line.items()}).encode() + b"\n"
        if self._last.busy - before.busy > LEAST_SHARE * elapsed:
            self._write_waiting()

    def _count(self) -> _Point:
        """Adds the energy since the last call, and returns the sums."""
        before, now, busy = self._counted, time.monotonic(), self._host.busy_seconds()
        self._estimate.add(now - before.time, max(0.0, busy - before.busy), self._host.resident())
        self._joules = dict((self._rapl or self._estimate).joules())
        if self._gpu is not None:
            self._joules[self._gpu.name] = self._gpu.joules
        self._counted = _Point(now, busy, sum(self._joules.values()))
        return self._counted

    def _write_waiting(self) -> None:
        """Writes the lines of the last samples.

        The lines of a process that does not compute wait: a process that writes is never taken for a stalled one
        (`toolkit.distributed.heartbeat`).
        """
        lines, self._waiting = self._waiting, bytearray()
        if self._file is None:
            return
        try:
            self._file.write(lines)
        except OSError as error:
            self._stop_writing(Path(self._file.name), error)

    def _stop_writing(self, path: Path, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
        warn(f"no more samples are written to {path}: {why(error, path)}")

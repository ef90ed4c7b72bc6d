"""Use of the machine by a process (processor, memory, GPU, energy), sampled by a thread into a file."""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from toolkit.base.console import warn
from toolkit.base.files import why
from toolkit.base.processes import Thread
from toolkit.system.activity import LEAST_SHARE, SHORTAGE, disk_bytes, machine_id
from toolkit.system.limits import threads_per_process

if TYPE_CHECKING:
    import torch


CHILDREN = Path("/proc/self/task")


class Host:
    """Reads the use of the processor, memory, disk and network; rates are those since the last reading."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._children: dict[int, tuple[float, int, int]] = {}
        self._of_children = [0.0, 0, 0]
        self._last = self._first = self._counts()

    def busy_seconds(self) -> float:
        """Returns the processor time of this process and its children since this object was built, in seconds."""
        return max(0.0, time.process_time() + self._add_children()[0] - self._first["cpu_cores"])

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
        before, self._last = self._last, self._counts()
        grown = {name: max(0.0, now - before[name]) for name, now in self._last.items()}
        elapsed, busy, whole = (grown.pop(name) for name in ("time", "machine_busy", "machine_all"))
        return {
            "memory_bytes": self.resident(),
            **{name: value / max(1e-6, elapsed) for name, value in grown.items()},
            "machine_cpu_percent": 100 * busy / whole if whole > 0 else 0.0,
            "machine_memory_percent": psutil.virtual_memory().percent,
        }

    def _counts(self) -> dict[str, float]:
        """Returns sums since the start of the process or the machine; 0 for a counter that the system does not have.

        Those of the process, its disks and the network have the names of their growth per second.
        """
        times = psutil.cpu_times()
        every = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # are in `user`
        sent, received = _network()
        cpu, read, written = self._add_children()
        own_read, own_written = disk_bytes(self._own)
        return {
            "time": time.monotonic(),
            "machine_busy": every - times.idle - getattr(times, "iowait", 0.0),
            "machine_all": every,
            "cpu_cores": time.process_time() + cpu,
            "disk_read_bytes_per_second": own_read + read,
            "disk_written_bytes_per_second": own_written + written,
            "network_sent_bytes_per_second": sent,
            "network_received_bytes_per_second": received,
        }

    def _add_children(self) -> tuple[float, int, int]:
        """Returns processor time and bytes of the children so far, also of those that have ended in between."""
        before, self._children = self._children, {}
        for pid in _child_ids(self._own):
            with suppress(psutil.Error, OSError):
                child = psutil.Process(pid)
                now = (sum(child.cpu_times()[:2]), *disk_bytes(child))
                for place, (value, former) in enumerate(zip(now, before.get(pid, (0.0, 0, 0)), strict=True)):
                    self._of_children[place] += max(0, value - former)
                self._children[pid] = now
        cpu, read, written = self._of_children
        return cpu, int(read), int(written)


def _child_ids(own: psutil.Process) -> Iterator[int]:
    """Yields the children that the main thread has started: looking among all processes, as psutil, takes long."""
    try:
        yield from map(int, (CHILDREN / str(threading.main_thread().native_id) / "children").read_text().split())
    except OSError:  # not Linux, or a kernel without this list
        with suppress(psutil.Error, OSError):
            yield from (child.pid for child in own.children())


def _network() -> tuple[int, int]:
    """Returns the bytes that the machine has sent and received, without its loopback."""
    with suppress(psutil.Error, OSError):
        cards = [c for name, c in psutil.net_io_counters(pernic=True, nowrap=False).items() if name != "lo"]
        return sum(card.bytes_sent for card in cards), sum(card.bytes_recv for card in cards)
    return 0, 0


MILLI = 1e-3


class Gpu:
    """One GPU of NVIDIA's, as NVML sees it: the initialised module `pynvml`, its handle, and its unique name."""

    def __init__(self, nvml: Any, handle: Any, name: str) -> None:
        self.name = name
        self._nvml, self._handle = nvml, handle
        self._first = self._counter()
        self._summed, self._last = 0.0, time.monotonic()

    @staticmethod
    def of(device: torch.device | None) -> Gpu | None:
        """Returns the GPU of a device; None for other devices, or if NVML is not installed or does not know it."""
        if device is None or device.type != "cuda":
            return None
        import torch

        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
        # CUDA_VISIBLE_DEVICES renumbers the GPUs for torch, but not for NVML.
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        try:
            nvml.nvmlInit()
            return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(name), name)
        except nvml.NVMLError:  # no driver, or a part of a GPU (MIG)
            return None

    def read(self) -> dict[str, float]:
        """Returns `gpu_percent`, `gpu_memory_bytes`, `gpu_watts` and `gpu_celsius`, without what this GPU lacks."""
        nvml, found = self._nvml, dict[str, float]()
        with suppress(nvml.NVMLError):
            found["gpu_percent"] = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        with suppress(nvml.NVMLError):
            found["gpu_memory_bytes"] = nvml.nvmlDeviceGetMemoryInfo(self._handle).used
        with suppress(nvml.NVMLError):
            found["gpu_watts"] = nvml.nvmlDeviceGetPowerUsage(self._handle) * MILLI
        with suppress(nvml.NVMLError):
            found["gpu_celsius"] = nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)
        now = time.monotonic()
        self._summed += found.get("gpu_watts", 0.0) * (now - self._last)
        self._last = now
        return found

    @property
    def joules(self) -> float:
        """Energy since this object was built: of the GPU's counter, or of the power at the readings if it has none."""
        now = self._counter()
        return self._summed if now is None or self._first is None else (now - self._first) * MILLI

    def _counter(self) -> int | None:
        """Returns the millijoules since the driver was loaded; None for GPUs older than Volta."""
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None


POWERCAP = Path("/sys/class/powercap")
COUNTED = ("package", "dram")
"""Beginnings of the names of counters that are added up; others are parts of these, or contain them (`psys`)."""
IDLE_WATTS, BUSY_WATTS = 0.74, 3.5
"""Power of a logical CPU that is idle and of one that is busy, averages over the machines of a cloud provider (AWS):
https://www.cloudcarbonfootprint.org/docs/methodology/"""
WATTS_PER_GB = 0.392
"""Power of a gigabyte of memory (10^9 bytes), of the same source."""
ESTIMATED = (
    f"estimated from the processor time: {IDLE_WATTS} W for each logical CPU, {BUSY_WATTS} W while it is busy, and "
    f"{WATTS_PER_GB} W per GB of memory (Cloud Carbon Footprint)"
)


class Rapl:
    """The energy counters of processors and memory that Linux shows in /sys/class/powercap, each a folder."""

    source = "CPU and memory: measured (RAPL), the whole machine"

    def __init__(self, zones: Sequence[Path]) -> None:
        machine = machine_id()
        self._zones = {f"{machine} {zone.name}": zone for zone in zones}
        self._last = {name: _number(zone / "energy_uj") for name, zone in self._zones.items()}
        self._sums = dict.fromkeys(self._zones, 0.0)

    @staticmethod
    def of(root: Path = POWERCAP) -> Rapl | None:
        """Returns the machine's counters; None if there are none, or only the administrator may read them."""
        zones = []
        with suppress(OSError, ValueError):
            for zone in sorted(root.glob("intel-rapl:*")):
                if (zone / "name").read_text().startswith(COUNTED):
                    _number(zone / "energy_uj")
                    zones.append(zone)
        return Rapl(zones) if zones else None

    def joules(self) -> Mapping[str, float]:
        """Returns the energy by counter since this object was built; call it before a counter has run over twice."""
        for name, zone in self._zones.items():
            with suppress(OSError, ValueError):
                now = _number(zone / "energy_uj")
                difference = now - self._last[name]
                if difference < 0:  # the counter has begun again at 0
                    difference += _number(zone / "max_energy_range_uj")
                self._sums[name] += max(0, difference) * 1e-6
                self._last[name] = now
        return self._sums


class Estimate:
    """Estimates the energy of a rank's share of the machine from the time for which it computes."""

    source = f"CPU and memory: {ESTIMATED}"

    def __init__(self, rank: int) -> None:
        self._name = f"rank {rank}"
        self._idle_watts = IDLE_WATTS * threads_per_process(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._sum = 0.0

    def add(self, elapsed: float, busy: float, resident: float) -> None:
        """Adds the energy of `elapsed` seconds with `busy` seconds of processor time and `resident` bytes."""
        memory_watts = WATTS_PER_GB * resident * 1e-9
        self._sum += elapsed * (self._idle_watts + memory_watts) + busy * (BUSY_WATTS - IDLE_WATTS)

    def joules(self) -> Mapping[str, float]:
        """Returns the energy so far."""
        return {self._name: self._sum}


def _number(file: Path) -> int:
    return int(file.read_text())


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
    """Samples this process and its device until it is closed; a context manager.

    Sampling never ends or delays a run: if a file cannot be written, there is a warning and no more lines, and a
    reading that does not return is given up. The `interval` between samples is in seconds; None measures time only.
    """

    def __init__(self, interval: float | None = None, rank: int = 0, device: torch.device | None = None) -> None:
        self.interval, self.rank = interval, rank
        self._began = 0.0
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._thread: Thread | None = None
        self.file: IO[bytes] | None = None
        self._step: Callable[[], int] = int
        self._joules: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._waiting = bytearray()
        if interval is None:
            return
        self.host = Host()
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
        """Starts to measure, and to add samples to a file; the first one covers the time since this object was built.

        `step` returns the current step of the run.
        """
        self._began = time.monotonic()
        if self.interval is None:
            return
        self._step = step
        self._open(path)
        self.guarded(self.sample)
        self._before = dict(self._joules)
        self._thread = Thread(partial(self._run, self.interval), "system")
        self._thread.start()

    def joules(self) -> dict[str, float]:
        """Returns the energy since `begin` by what was measured; processes of a machine share some of the names."""
        if self._thread is not None:
            self.guarded(self._count)
        return {name: value - self._before.get(name, 0.0) for name, value in self._joules.items()}

    def end(self) -> None:
        """Takes the last sample and makes sure that the file is on the disk."""
        if self._thread is None:
            return
        self.guarded(self._count if time.monotonic() - self._last.time < LEAST_SECONDS else self.sample)
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
        file, self.file = self.file, None
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
            self.guarded(self.sample)

    def _open(self, path: Path) -> None:
        """Opens the file, without an incomplete line of a process that was killed."""
        try:
            self.file = path.open("ab", buffering=0)
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(max(0, size - TAIL))
                tail = file.read()
            if rest := len(tail) - (tail.rfind(b"\n") + 1):
                os.truncate(path, size - rest)
        except OSError as error:
            self._stop_writing(path, error)

    def guarded(self, work: Callable[[], object]) -> None:
        """Calls a function that reads, unless another reading does not return."""
        if not self._lock.acquire(timeout=LIMIT_SECONDS):
            return
        try:
            work()
        except SHORTAGE:  # the run continues, or ends with a message of its own
            return
        finally:
            self._lock.release()

    def sample(self) -> None:
        """Adds a line, and writes it if this process computes."""
        before, self._last = self._last, self._count()
        line: dict[str, float] = {
            "time": round(time.time(), 3),
            "seconds": self._last.time - self._began,
            "rank": self.rank,
            "step": self._step(),
            **self.host.read(),
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
        before, now, busy = self._counted, time.monotonic(), self.host.busy_seconds()
        self._estimate.add(now - before.time, max(0.0, busy - before.busy), self.host.resident())
        self._joules = dict((self._rapl or self._estimate).joules())
        if self._gpu is not None:
            self._joules[self._gpu.name] = self._gpu.joules
        self._counted = _Point(now, busy, sum(self._joules.values()))
        return self._counted

    def _write_waiting(self) -> None:
        """Writes the last samples; a process that does not compute writes none, so that it can count as stalled."""
        lines, self._waiting = self._waiting, bytearray()
        if self.file is None:
            return
        try:
            self.file.write(lines)
        except OSError as error:
            self._stop_writing(Path(self.file.name), error)

    def _stop_writing(self, path: Path, error: OSError) -> None:
        file, self.file = self.file, None
        if file is not None:
            file.close()
        warn(f"no more samples are written to {path}: {why(error, path)}")

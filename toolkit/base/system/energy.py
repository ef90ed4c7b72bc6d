"""The energy of processors and memory: from the machine's counters where they can be read, otherwise an estimate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from toolkit.base.limits import threads_per_process
from toolkit.base.vitals import machine_id

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
    """The energy counters of processors and memory that Linux shows in /sys/class/powercap.

    Args:
        zones: the folders of the counters.
    """

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
    """Estimates the energy of this process's share of the machine from the time for which it computes.

    Args:
        rank: of the process.
    """

    source = f"CPU and memory: {ESTIMATED}"

    def __init__(self, rank: int) -> None:
        self._name = f"rank {rank}"
        self._idle_watts = IDLE_WATTS * threads_per_process(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._sum = 0.0

    def add(self, elapsed: float, busy: float, resident: float) -> None:
        """Adds the energy of a time.

        Args:
            elapsed: its length in seconds.
            busy: seconds of processor time in it.
            resident: bytes of memory.
        """
        memory_watts = WATTS_PER_GB * resident * 1e-9
        self._sum += elapsed * (self._idle_watts + memory_watts) + busy * (BUSY_WATTS - IDLE_WATTS)

    def joules(self) -> Mapping[str, float]:
        """Returns the energy so far."""
        return {self._name: self._sum}


def _number(file: Path) -> int:
    return int(file.read_text())

"""What this process may use of the machine: cores and memory, within the limits of its control groups (Linux)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
GROUPS = Path("/proc/self/cgroup")
MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and use of a group's memory, in version 2 and 1 of control groups."""


def cores() -> int:
    """Returns the number of cores that this process may use, at least 1 (affinity, and its groups' share of time)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _folders("cpu"):
        quota, period = [*_numbers(folder / "cpu.max"), None, None][:2]  # version 2
        if quota is None or period is None:  # version 1
            quota, period = (next(_numbers(folder / f"cpu.cfs_{name}_us"), None) for name in ("quota", "period"))
        if quota is not None and period and quota > 0:
            usable = min(usable, math.ceil(quota / period))
    return max(1, usable)


def free_memory() -> int:
    """Returns the bytes that this process can still allocate without swapping; cached files count as free."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for folder in _folders("memory"):
        for names in MEMORY_FILES:
            limit, use = (next(_numbers(folder / name), None) for name in names)
            if limit is not None and use is not None:
                free = min(free, limit - use + _cached(folder))
    return max(0, free)


def _cached(folder: Path) -> int:
    """Returns the bytes of a group that hold files and can be dropped."""
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
    return 0


def _folders(controller: str) -> Iterator[Path]:
    """Yields the folders of this process's groups and of those around them, in either version of control groups."""
    with suppress(OSError):
        for line in GROUPS.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            root = ROOT / names if names else ROOT
            group = root / path.lstrip("/")
            # In a container, the path may be that of the machine, while only the container's own group is mounted.
            yield from {each for each in (group, *group.parents) if each.is_relative_to(root)} | {root}


def _numbers(file: Path) -> Iterator[int]:
    """Yields the numbers of a file; none if it does not exist or says `max`."""
    with suppress(OSError, ValueError):
        for word in file.read_text().split():
            yield int(word)

"""How many CPU cores this process may use, and the threads that follow from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def usable_cores(root: Path = ROOT) -> int:
    """Returns the number of cores that this process may use: those it is bound to, or fewer if its cgroup has a quota.

    PyTorch starts as many threads as the machine has cores, also in a container that may use two of them, where the
    threads then wait for each other.

    Args:
        root: where `proc` and `sys` are mounted.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([bound, *_quotas(root)])))


def threads_per_process(processes: int, root: Path = ROOT) -> int:
    """Returns the threads of each of several equal processes on this machine, at least 1."""
    return max(1, usable_cores(root) // processes)


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quotas of this process's cgroups (versions 2 and 1) and of those that contain them, in cores."""
    with suppress(OSError):  # not Linux
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _limits(root / "sys/fs/cgroup", path)
            elif "cpu" in controllers.split(","):
                yield from _limits(root / "sys/fs/cgroup" / controllers, path)
                yield from _limits(root / "sys/fs/cgroup/cpu", path)


def _limits(mount: Path, path: str) -> Iterator[float]:
    # In a container the mount is that of its own cgroup, whose path on the host does not exist.
    for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
        place = mount / str(folder).lstrip("/")
        with suppress(OSError, ValueError):  # no such file, or `max`
            quota, period = (place / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        with suppress(OSError, ValueError):
            quota, period = ((place / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:
                yield int(quota) / int(period)

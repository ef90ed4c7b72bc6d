"""The share of the machine that this process may use: cores and memory, and how the allocator keeps freed memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MIB = 2**20
TRIM, MAP = -1, -3
"""Options of `mallopt`: how much may be free at the end of the heap, and how large blocks outside the heap are."""
KEPT = ({MAP: 256 * MIB, TRIM: 1024 * MIB}, {MAP: 32 * MIB, TRIM: 1024 * MIB})
"""Values to set; the second where the first fails: older versions keep blocks of more than 32 MiB outside."""
USUAL = {MAP: 32 * MIB, TRIM: 64 * MIB}
"""glibc's own values after large allocations. Setting them disables the adaptive threshold."""
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
TUNABLES = ("glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")
_users = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keeps freed memory for the next allocations, instead of returning it to the system.

    Every training step allocates and frees the same memory. glibc returns most of it and gets it again page by page,
    which takes up to a fifth of a step. Settings in the environment have priority. The outermost block returns free
    memory at its end.
    """
    global _users
    if is_set(os.environ):
        yield
        return
    if _users == 0:
        any(_set(values) for values in KEPT)
    _users += 1
    try:
        yield
    finally:
        _users -= 1
        if _users == 0 and _set(USUAL):
            give_back_freed()


def is_set(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment says what glibc does."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(name in environment for name in VARIABLES) or any(name in tunables for name in TUNABLES)


def give_back_freed() -> None:
    """Returns freed memory to the system."""
    if (trim := libc_function("malloc_trim")) is not None:
        trim(0)


def _set(values: Mapping[int, int]) -> bool:
    """Sets options and returns whether the C library has taken all of them."""
    mallopt = libc_function("mallopt")
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in values.items())


def libc_function(name: str) -> ctypes._NamedFuncPointer | None:
    """Returns a function of the C library, or None if that is not glibc."""
    try:
        library = ctypes.CDLL(None)
        return getattr(library, name) if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, AttributeError, TypeError):  # no library, no function, or Windows
        return None


ROOT = Path("/sys/fs/cgroup")
GROUPS = Path("/proc/self/cgroup")
MEMORY_FILES = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""The limit of a group's memory in version 2 and 1 of control groups, with its use and the part that can be freed."""


def usable_cores() -> int:
    """Returns the number of cores that this process may use, at least 1: those it is bound to, or its groups' quota.

    PyTorch starts as many threads as the machine has cores; in a container that may use two of them, they wait for each
    other.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([bound, *_quotas()])))


def threads_per_process(processes: int) -> int:
    """Returns the threads of each of several equal processes on this machine, at least 1."""
    return max(1, usable_cores() // processes)


def available_memory() -> int:
    """Returns the bytes that this process can still allocate without swapping; cached files count as free.

    Freed memory that the process keeps is returned first.
    """
    import psutil

    give_back_freed()
    free = [int(psutil.virtual_memory().available), *_free_in_groups()]
    with suppress(ImportError):  # Windows
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            free.append(limit - psutil.Process().memory_info().vms)
    return max(0, min(free))


def _quotas() -> Iterator[float]:
    for folder in _folders("cpu"):
        with suppress(OSError, ValueError):  # no such file, or `max`
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        with suppress(OSError, ValueError):
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:
                yield int(quota) / int(period)


def _free_in_groups() -> Iterator[int]:
    for folder in _folders("memory"):
        for limit, (use, freeable) in MEMORY_FILES.items():
            with suppress(OSError, ValueError):
                free = int((folder / limit).read_text()) - int((folder / use).read_text())
                yield free + _freeable(folder, freeable)


def _freeable(folder: Path, name: str) -> int:
    """Returns the bytes of a group that hold cached files and can be dropped."""
    with suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())[name])
    return 0


def _folders(controller: str) -> Iterator[Path]:
    """Yields the folders of this process's groups and of those around them, in either version of control groups."""
    with suppress(OSError):  # not Linux
        for line in GROUPS.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            for root in {ROOT / names, ROOT / controller} if names else {ROOT}:
                group = root / path.lstrip("/")
                # In a container, the path may be that of the machine, while only the container's own group is mounted.
                yield from {each for each in (group, *group.parents) if each.is_relative_to(root)} | {root}


BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags in /proc/cpuinfo of CPUs (x86 or ARM) with native bf16 multiplication."""


def has_gpu() -> bool:
    """Whether torch can compute on a GPU; does not import it where there is certainly none."""
    if not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return False
    import torch

    return torch.cuda.is_available()


def has_fast_bf16() -> bool:
    """Whether this machine's GPU, or its CPU if it has none, multiplies bf16 numbers faster than float32."""
    if has_gpu():
        import torch

        return torch.cuda.is_bf16_supported(including_emulation=False)
    return not BF16_FLAGS.isdisjoint(cpu_flags())


def cpu_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns the feature flags of the first CPU; empty if the system does not report them."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return frozenset(found[0] if found else ())

"""Free memory is that of the machine, of control groups and of the process's own limit, whichever is least."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest

from toolkit.base import memory

FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def limit(folder: Path, version: int, bound: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(FILES[version], (bound, used, f"anon 1\n{FILES[version][2]} {cached}\n"), strict=True):
        (folder / (name if name.startswith("memory.") else "memory.stat")).write_text(str(value))


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_control_group_counts(version, tmp_path, monkeypatch):
    """Memory of cached files that can be freed is free; groups that cannot be seen from a container are left out."""
    root = tmp_path if version == 2 else tmp_path / "memory"
    limit(root, version, "max" if version == 2 else str(2**62), 10**9, 0)
    limit(root / "job", version, "3000000", 2500000, 400000)
    limit(root / "job" / "step", version, "5000000", 1000000, 0)
    groups = tmp_path / "groups"
    own = "/job/step/inside"
    groups.write_text(f"0::{own}\n" if version == 2 else f"4:memory:{own}\n3:cpu:/other\n0::/\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", groups)
    assert memory.available_memory() == 900000


def test_the_limit_of_the_process_counts(monkeypatch):
    held = psutil.Process().memory_info().vms
    monkeypatch.setattr(memory, "OWN_GROUPS", Path("/there/is/none"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (held + 2**20, held + 2**21))
    assert 0 <= memory.available_memory() <= 2 * 2**20


def test_without_limits_it_is_that_of_the_machine(monkeypatch):
    monkeypatch.setattr(memory, "OWN_GROUPS", Path("/there/is/none"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory.available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)

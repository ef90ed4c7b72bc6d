"""Cores and memory within the limits of control groups, in both of their versions."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from toolkit.base import cgroup

MANY = 2**40


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Returns a function that writes the files of control groups, and those of this process."""

    def write(own: str, files: dict[str, str]) -> None:
        monkeypatch.setattr(cgroup, "ROOT", tmp_path)
        monkeypatch.setattr(cgroup, "GROUPS", tmp_path / "own")
        for name, content in {"own": own, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Path(tmp_path, name).write_text(content)

    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": MANY}))
    return write


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/job/step\n", {"job/cpu.max": "50000 100000\n", "job/step/cpu.max": "max 100000\n"}, 1),
        ("0::/not/mounted\n", {"cpu.max": "400000 100000\n"}, 4),
        ("3:cpu,acct:/a\n", {"cpu,acct/a/cpu.cfs_quota_us": "200000", "cpu,acct/a/cpu.cfs_period_us": "100000"}, 2),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("3:pids:/\n", {"cpu.max": "100000 100000\n"}, 8),
    ],
)  # fmt: skip
def test_cores(own, files, cores, groups):
    groups(own, files)
    assert cgroup.cores() == cores


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        ("0::/\n", {"memory.max": "max\n", "memory.current": "5\n"}, MANY),
        ("0::/a\n", {"a/memory.max": "1000", "a/memory.current": "400", "a/memory.stat": "inactive_file 100"}, 700),
        ("0::/a\n", {"memory.max": "300", "memory.current": "400", "a/memory.max": "max", "a/memory.current": "4"}, 0),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9", "memory/a/memory.usage_in_bytes": "2"}, 7),
    ],
)  # fmt: skip
def test_free_memory(own, files, free, groups):
    groups(own, files)
    assert cgroup.free_memory() == free


def test_other_systems_have_no_groups(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "GROUPS", tmp_path / "none")
    assert cgroup.cores() >= 1
    assert cgroup.free_memory() > 0

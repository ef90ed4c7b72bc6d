"""Cores and memory within the limits of the process and of its control groups, in both of their versions."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from toolkit.system import limits
from toolkit.system.limits import available_memory, threads_per_process, usable_cores

MANY = 2**40


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Returns a function that writes the files of control groups, and those of this process."""

    def write(own: str, files: dict[str, str]) -> None:
        monkeypatch.setattr(limits, "ROOT", tmp_path)
        monkeypatch.setattr(limits, "GROUPS", tmp_path / "own")
        for name, content in {"own": own, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Path(tmp_path, name).write_text(content)

    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": MANY}))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return write


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/job/step\n", {"job/cpu.max": "50000 100000\n", "job/step/cpu.max": "max 100000\n"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "350000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/not/mounted\n", {"cpu.max": "400000 100000\n"}, 4),  # a container without that path
        ("3:cpu,acct:/a\n", {"cpu,acct/a/cpu.cfs_quota_us": "600000", "cpu,acct/a/cpu.cfs_period_us": "100000"}, 6),
        ("3:cpu,acct:/a\n", {"cpu/a/cpu.cfs_quota_us": "600000", "cpu/a/cpu.cfs_period_us": "100000"}, 6),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ("3:pids:/\n", {"cpu.max": "100000 100000\n"}, 64),
    ],
)  # fmt: skip
def test_quotas_limit_the_cores(own, files, cores, groups):
    groups(own, files)
    assert usable_cores() == cores
    assert [threads_per_process(processes) for processes in (1, 2, 100)] == [cores, max(1, cores // 2), 1]


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        ("0::/\n", {"memory.max": "max\n", "memory.current": "5\n"}, MANY),
        ("0::/a\n", {"a/memory.max": "1000", "a/memory.current": "400", "a/memory.stat": "inactive_file 100"}, 700),
        ("0::/a\n", {"memory.max": "300", "memory.current": "400", "a/memory.max": "max", "a/memory.current": "4"}, 0),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9", "memory/a/memory.usage_in_bytes": "2"}, 7),
        (
            "4:memory:/a\n3:cpu:/b\n0::/\n",
            {"memory/a/memory.limit_in_bytes": "9", "memory/a/memory.usage_in_bytes": "5",
             "memory/a/memory.stat": "anon 1\ntotal_inactive_file 3"},
            7,
        ),
        (
            "0::/job/step/inside\n",  # the tightest counts, and groups that cannot be seen are left out
            {"job/memory.max": "3000000", "job/memory.current": "2500000", "job/memory.stat": "inactive_file 400000",
             "job/step/memory.max": "5000000", "job/step/memory.current": "1000000"},
            900000,
        ),
    ],
)  # fmt: skip
def test_groups_limit_the_memory(own, files, free, groups):
    groups(own, files)
    assert available_memory() == free


def test_the_limit_of_the_process_counts(groups, monkeypatch):
    groups("", {})
    held = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda which: (held + 2**20, held + 2**21))
    assert 0 <= available_memory() <= 2 * 2**20


def test_other_systems_have_no_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "GROUPS", tmp_path / "none")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cores() == 7
    assert available_memory() > 0


STATE = """
import torch
from toolkit.distributed.launch import own_process_state
before = torch.get_num_threads()
with own_process_state():
    tiny = torch.full((200_000,), 2e-38)
    print(torch.get_num_threads(), int((tiny * 0.1).count_nonzero()))
print(torch.get_num_threads() == before, int((tiny[:3] * 0.1).count_nonzero()))
"""


@pytest.mark.fast(1)
@pytest.mark.parametrize("threads", [None, "2"])
def test_a_run_gets_its_threads_and_flushes_denormals_on_all_of_them(threads):
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE")}
    environ |= {"LOCAL_WORLD_SIZE": "1000"} if threads is None else {"OMP_NUM_THREADS": threads}
    done = subprocess.run([sys.executable, "-c", STATE], env=environ, capture_output=True, text=True, check=True)
    inside, outside = done.stdout.splitlines()
    assert inside == f"{threads or 1} 0"
    assert outside == "True 3"

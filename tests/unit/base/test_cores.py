"""The cores that a process may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.base.cores import threads_per_process, usable_cores

BOUND = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture
def many(monkeypatch):
    """Pretends that this process is bound to 64 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "350000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/a\n", {"sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ("0::/host/path\n", {"sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),  # a container without that path
        (
            "4:cpu,cpuacct:/job\n1:name=systemd:/job\n",
            {"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "600000\n",
             "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"},
            6,
        ),
        (
            "4:cpu:/\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            64,
        ),
        ("", {}, 64),
    ],
)  # fmt: skip
def test_quotas_of_cgroups_limit_the_cores(cgroup, files, cores, tmp_path, many):
    root = machine(tmp_path, cgroup, files)
    assert usable_cores(root) == cores
    assert [threads_per_process(n, root) for n in (1, 2, 100)] == [cores, max(1, cores // 2), 1]


def test_other_systems_have_all_their_cores(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cores(tmp_path) == 7


def test_this_machine_has_some():
    assert 1 <= usable_cores() <= BOUND


STATE = """
import torch
from toolkit.distributed.process_state import own_process_state
before = torch.get_num_threads()
with own_process_state():
    tiny = torch.full((200_000,), 2e-38)
    print(torch.get_num_threads(), int((tiny * 0.1).count_nonzero()))
print(torch.get_num_threads() == before, int((tiny[:3] * 0.1).count_nonzero()))
"""


@pytest.mark.parametrize("threads", [None, "2"])
def test_a_run_gets_its_threads_and_flushes_denormals_on_all_of_them(threads, tmp_path):
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE")}
    environ |= {"LOCAL_WORLD_SIZE": "1000"} if threads is None else {"OMP_NUM_THREADS": threads}
    done = subprocess.run([sys.executable, "-c", STATE], env=environ, capture_output=True, text=True, check=True)
    inside, outside = done.stdout.splitlines()
    assert inside == f"{threads or 1} 0"
    assert outside == "True 3"

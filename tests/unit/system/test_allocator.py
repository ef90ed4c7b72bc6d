"""Freed memory is kept for the next step, except where the environment says otherwise."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from toolkit.distributed.launch import own_process_state
from toolkit.system import limits
from toolkit.system.limits import freed_memory_kept, is_set

STEPS = """
import resource, torch
from contextlib import nullcontext
from toolkit.system.limits import freed_memory_kept
from toolkit.system.memory import held_bytes

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        kept = [torch.ones(3 * 2**20) for _ in range(4)]  # 12 MiB each
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

held = held_bytes(torch.device("cpu"))
with freed_memory_kept():
    faults()
    print(faults())
print(held_bytes(torch.device("cpu")) - held)
"""

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc"
)


def measured(**environment: str) -> tuple[int, int]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | environment
    done = subprocess.run([sys.executable, "-c", STEPS], env=environ, capture_output=True, text=True, check=True)
    faults, bytes_held = map(int, done.stdout.split())
    return faults, bytes_held


@pytest.mark.slow
@needs_glibc
def test_the_memory_of_a_step_is_used_again_and_returned_at_the_end():
    faults, held = measured()
    mapped, _ = measured(MALLOC_MMAP_THRESHOLD_="65536")  # which is left alone
    assert faults < mapped / 5
    assert held < 24 * 2**20


def test_what_the_environment_sets():
    assert not is_set({"MALLOC_ARENA_MAX": "2", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"})
    assert is_set({"MALLOC_TRIM_THRESHOLD_": "131072"})
    assert is_set({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=65536"})


@pytest.mark.parametrize("library", [OSError("no such library"), TypeError("Windows"), SimpleNamespace(mallopt=1)])
def test_other_c_libraries_are_left_alone(monkeypatch, library):
    def opened(name):
        if isinstance(library, Exception):
            raise library
        return library  # without the function that names glibc's version

    monkeypatch.setattr(limits.ctypes, "CDLL", opened)
    with freed_memory_kept():
        pass
    limits.give_back_freed()


@pytest.mark.parametrize("largest", [256, 32])
def test_a_run_sets_what_the_library_takes_and_the_outermost_block_ends_it(monkeypatch, largest):
    taken = []

    def mallopt(option, value):
        if option == limits.MAP and value > largest * limits.MIB:
            return 0
        taken.append((option, value // limits.MIB))
        return 1

    monkeypatch.setattr(
        limits, "libc_function", {"mallopt": mallopt, "malloc_trim": lambda keep: taken.append(keep)}.get
    )
    monkeypatch.setattr(limits, "is_set", lambda environment: False)
    with own_process_state():
        assert taken == [(limits.MAP, largest), (limits.TRIM, 1024)]
        with own_process_state():
            pass
        assert len(taken) == 2
    assert taken[2:] == [(limits.MAP, 32), (limits.TRIM, 64), 0]

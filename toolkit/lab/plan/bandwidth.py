"""Measures the bandwidth of an all-reduce of gradients between processes on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toolkit.base.errors import RunError
from toolkit.lab.jobs.jobs import Trial, run_trials

BYTES = 25 * 2**20
"""Bytes of one all-reduce: the bucket size of `DistributedDataParallel`."""
ROUNDS = 8
PROCESSES = 2
TIMEOUT_SECONDS = 120.0
"""Without it, processes that cannot reach each other would wait for half an hour."""


def measure_bandwidth(job: Mapping[str, Any]) -> float:
    """Times all-reduces of a bucket of gradients in this process group.

    Args:
        job: not used; every function in `toolkit.lab.worker.WORK` takes one argument.

    Returns:
        Bytes per second that one process sends.
    """
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    world, seconds = distributed.get_world_size(), []
    bucket = torch.ones(BYTES // 4)
    for _ in range(ROUNDS):
        distributed.barrier()
        start = time.perf_counter()
        distributed.all_reduce(bucket)
        seconds.append(time.perf_counter() - start)
    return 2 * (world - 1) / world * BYTES / statistics.median(seconds[1:])


def measured_bandwidth() -> float:
    """Starts two processes on this machine and returns the result of `measure`, in bytes per second.

    Raises:
        RunError: if the processes cannot reach each other.
    """
    with TemporaryDirectory(prefix="bandwidth-") as name:
        folder = Path(name)
        trial = Trial("bandwidth", {}, folder / "outcome.json")
        (outcome,) = run_trials([trial], folder / "bandwidth.log", PROCESSES, timeout=TIMEOUT_SECONDS)
    if outcome.error is not None:
        raise RunError(f"--calibrate: two processes cannot exchange data here; set --bandwidth\n  {outcome.error}")
    return float(outcome.result)

"""How fast processes here add up gradients: run by `torch.distributed.run` with `-m toolkit.lab.plan.bandwidth`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from toolkit.base.errors import RunError

BYTES = 25 * 2**20
"""As many as `DistributedDataParallel` exchanges at once."""
ROUNDS = 8
PROCESSES = 2


def measure() -> float:
    """Adds up a bucket of gradients in this process group; returns the bytes a process sends per second."""
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
    distributed.destroy_process_group()
    return 2 * (world - 1) / world * BYTES / statistics.median(seconds[1:])


def measured_bandwidth() -> float:
    """Starts two processes on this machine and returns what `measure` finds, in bytes per second.

    Raises:
        RunError: if they do not find each other.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(PROCESSES),
               "-m", "toolkit.lab.plan.bandwidth"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not found:
        end = "\n  ".join(done.stderr.splitlines()[-10:])
        raise RunError(
            f"--calibrate: two processes here cannot exchange anything (exit code {done.returncode}); give --bandwidth"
            f"\n  {end}"
        )
    return float(json.loads(found[0])["bytes_per_second"])


if __name__ == "__main__":
    import os

    speed = measure()
    if os.environ["RANK"] == "0":
        print(json.dumps({"bytes_per_second": speed}))

"""Times collective operations of several sizes; called in separate processes.

Bandwidths are those of NVIDIA's nccl-tests: bytes of the tensor per second, times the share of it that each process
must send, so that operations and numbers of processes can be compared with the speed of the network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from toolkit.distributed.collectives import objects_of_all
from toolkit.distributed.exchange import share_sent

SIZES = tuple(2**10 * 4**power for power in range(9))
"""Bytes of the tensors: 1 KiB to 64 MiB. Of a tensor that is split or gathered, these are the bytes of the whole."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 50
SECONDS = 0.4
"""Time for each operation and size, within these numbers of rounds."""
WARM_UP = 2


def _all_reduce(whole: Tensor, part: Tensor) -> None:
    dist.all_reduce(whole)


def _all_gather(whole: Tensor, part: Tensor) -> None:
    dist.all_gather_into_tensor(whole, part)


def _reduce_scatter(whole: Tensor, part: Tensor) -> None:
    dist.reduce_scatter_tensor(part, whole)


def _broadcast(whole: Tensor, part: Tensor) -> None:
    dist.broadcast(whole, src=0)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
}


def factor(operation: str, processes: int) -> float:
    """Returns the part of the tensor that each process sends at least: the factor of nccl-tests' bus bandwidth."""
    share = share_sent(processes)
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(operation, share)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Times operations with every size in the group of the launched processes.

    Args:
        job: `sizes`: bytes of the tensors; `operations`: their names, if not all.

    Returns:
        `seconds`: by operation, those of each size, the median over rounds; a round lasts until its last process has
        finished. `backend` and `device`: what the processes use.
    """
    device = _begin()
    seconds: dict[str, list[float]] = {name: [] for name in job.get("operations", OPERATIONS)}
    for size in job["sizes"]:
        whole, part = _tensors(size, device)
        for name, found in seconds.items():
            found.append(_time(partial(OPERATIONS[name], whole, part), device))
    return {"seconds": seconds, "backend": dist.get_backend(), "device": device.type}


def _begin() -> torch.device:
    """Joins the group of the launched processes; returns this process's device."""
    local, of_machine = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if 0 < of_machine <= torch.cuda.device_count():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def _tensors(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns a tensor of about `size` bytes that all processes can split, and one of a process's part."""
    world = dist.get_world_size()
    part = torch.ones(max(1, size // 4 // world), device=device)
    return torch.ones(len(part) * world, device=device), part


def _time(operation: Callable[[], None], device: torch.device) -> float:
    """Returns the seconds of an operation."""
    for _ in range(WARM_UP):
        first = _round(operation, device)
    # All processes must agree on the number of rounds.
    first = max(objects_of_all(first))
    rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, round(SECONDS / max(first, 1e-9))))
    own = torch.tensor([_round(operation, device) for _ in range(rounds)], dtype=torch.float64)
    slowest = torch.stack(objects_of_all(own)).amax(0)
    return float(slowest.median())


def _round(operation: Callable[[], None], device: torch.device) -> float:
    dist.barrier()
    start = time.perf_counter()
    operation()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start

"""Collects values and tensors of all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

T = TypeVar("T")


def objects_of_all(own: T) -> list[T]:
    """Returns the picklable objects of all processes, by rank, on every process."""
    if not dist.is_initialized():
        return [own]
    found: list[T] = [own] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def tensors_on_main(own: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Returns the tensors of all processes on the main process; every process must call it.

    Args:
        own: this process's tensors by name, of any shape; if several processes have a name, the first one provides it.
        device: the device through which tensors are sent.

    Returns:
        On the main process all tensors, received ones on the CPU; on others an empty dictionary.
    """
    rank = dist.get_rank()
    first: dict[str, tuple[int, torch.Size, torch.dtype]] = {}
    for source, offered in enumerate(objects_of_all({name: (t.shape, t.dtype) for name, t in own.items()})):
        for name, (shape, dtype) in offered.items():
            first.setdefault(name, (source, shape, dtype))
    found = {}
    for name, (source, shape, dtype) in first.items():
        if rank == source == 0:
            found[name] = own[name]
        elif rank == source:
            dist.send(own[name].detach().to(device).contiguous(), 0)
        elif rank == 0:
            received = torch.empty(shape, dtype=dtype, device=device)
            dist.recv(received, source)
            found[name] = received.cpu()
    return found

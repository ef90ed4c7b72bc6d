"""Tensors that are split over processes (`torch.distributed.tensor.DTensor`), and ordinary ones alike."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def is_split(tensor: Any) -> bool:
    """Returns whether a tensor is split over, or replicated on, the processes of a device mesh."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def full(tensor: Tensor) -> Tensor:
    """Returns the complete tensor; for a split one, every process of its mesh must call this."""
    return cast(Any, tensor).full_tensor() if is_split(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Returns the part that this process holds, sharing its memory; an ordinary tensor is returned as it is."""
    return cast(Any, tensor).to_local() if is_split(tensor) else tensor


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copies a complete tensor into one that may be split; each process takes its part and nothing is sent.

    Args:
        target: tensor of any shape.
        value: complete tensor of the same shape, on any device.
    """
    if not is_split(target):
        target.copy_(value)
        return
    from torch.distributed.tensor import distribute_tensor

    split = cast(Any, target)
    mesh = split.device_mesh
    part = distribute_tensor(value.to(mesh.device_type), mesh, split.placements, src_data_rank=None)
    local(target).copy_(part.to_local())


def local_bytes(tensor: Tensor) -> int:
    """Returns the bytes of a tensor that this process holds."""
    part = local(tensor)
    return part.numel() * part.element_size()

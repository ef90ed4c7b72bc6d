"""Tensors that are split over processes (`torch.distributed.tensor.DTensor`), and ordinary ones alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, cast

import torch
from torch import Tensor


@dataclass(frozen=True)
class Box:
    """A rectangular part of a tensor."""

    start: tuple[int, ...]  # first index in each dimension
    shape: tuple[int, ...]  # length in each dimension

    @staticmethod
    def of(shape: Sequence[int]) -> Box:
        """Returns the box of a complete tensor of this shape."""
        return Box((0,) * len(shape), tuple(shape))

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def shared_with(self, other: Box) -> Box:
        """Returns the part that two boxes share, possibly with a length of 0."""
        start = tuple(max(pair) for pair in zip(self.start, other.start, strict=True))
        end = [min(a + n, b + m) for a, n, b, m in zip(self.start, self.shape, other.start, other.shape, strict=True)]
        return Box(start, tuple(max(0, last - first) for first, last in zip(start, end, strict=True)))

    def slices(self, inside: Box) -> tuple[slice, ...]:
        """Returns the slices that take this box out of a tensor that holds the box `inside`."""
        first = [start - offset for start, offset in zip(self.start, inside.start, strict=True)]
        return tuple(slice(start, start + length) for start, length in zip(first, self.shape, strict=True))


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
    """Copies a complete tensor, on any device, into one that may be split; each process takes its part."""
    if not is_split(target):
        target.copy_(value)
        return
    from torch.distributed.tensor import distribute_tensor

    split = cast(Any, target)
    mesh = split.device_mesh
    part = distribute_tensor(value.to(mesh.device_type), mesh, split.placements, src_data_rank=None)
    local(target).copy_(part.to_local())


def own_parts(tensor: Tensor) -> dict[Box, Box]:
    """Returns the parts of a tensor that this process holds, each with its place in `local(tensor)`; nothing is sent.

    There are several where a process holds some columns of a query, a key and a value that are one matrix, or where
    two dimensions of a mesh split a tensor unevenly.
    """
    if not is_split(tensor):
        return {Box.of(tensor.shape): Box.of(tensor.shape)}
    from torch.distributed.tensor import Replicate, distribute_tensor

    split = cast(Any, tensor)
    runs = []
    for dim, size in enumerate(split.shape):
        placements = [p if getattr(p, "dim", None) == dim else Replicate() for p in split.placements]
        if all(placement.is_replicate() for placement in placements):
            runs.append([(0, 0, size)])
            continue
        # Indices are split as the tensor is, so that no rule of torch is repeated here.
        indices = torch.arange(size).reshape([-1 if other == dim else 1 for other in range(split.dim())])
        mesh = split.device_mesh
        own = distribute_tensor(indices.to(mesh.device_type), mesh, placements, src_data_rank=None).to_local()
        runs.append(_consecutive(own.flatten().tolist()))
    parts = {}
    for part in product(*runs):
        starts, places, lengths = zip(*part, strict=True) if part else ((), (), ())
        parts[Box(starts, lengths)] = Box(places, lengths)
    return parts


def _consecutive(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns first index, its position and the length of each run of consecutive indices; one of length 0 if none."""
    firsts = [place for place, index in enumerate(indices) if place == 0 or index != indices[place - 1] + 1]
    ends = [*firsts, len(indices)][1:]
    return [(indices[place], place, end - place) for place, end in zip(firsts, ends, strict=True)] or [(0, 0, 0)]


def hull(boxes: Iterable[Box]) -> Box:
    """Returns the smallest box that has all boxes in it."""
    boxes = list(boxes)
    start = [min(each) for each in zip(*(box.start for box in boxes), strict=True)]
    ends = ([first + length for first, length in zip(box.start, box.shape, strict=True)] for box in boxes)
    end = [max(each) for each in zip(*ends, strict=True)]
    return Box(tuple(start), tuple(last - first for first, last in zip(start, end, strict=True)))


@torch.no_grad()
def fill_part(target: Tensor, held: Mapping[Box, Box], value: Tensor, box: Box) -> None:
    """Copies `value`, a complete tensor's part at `box`, into a tensor that may be split, of parts `held`."""
    for own, place in held.items():
        shared = own.shared_with(box)
        if shared.size:
            local(target)[place.slices(Box.of(local(target).shape))][shared.slices(own)].copy_(
                value[shared.slices(box)]
            )


def local_bytes(tensor: Tensor) -> int:
    """Returns the bytes of a tensor that this process holds; `ds_tensor` is DeepSpeed's part of an empty parameter."""
    part = getattr(tensor, "ds_tensor", local(tensor))
    return part.numel() * part.element_size()

"""Decides which process saves which part of the tensors of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from toolkit.base.errors import CheckpointError
from toolkit.base.shards import Box, local, own_parts
from toolkit.checkpoint.tensors import DTYPES
from toolkit.distributed.peers import Peers

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Group:
    """Tensors that are saved under one name.

    Args:
        name: `model`, `optimizer` or the name of a callback.
        tensors: tensors by name, as far as this process has them; they may be split over processes.
        metadata: additional strings for the header.
        first_only: names of tensors that may differ between processes; those of the lowest rank are saved.
        steady: names of tensors that change in updates only.
    """

    name: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    first_only: Collection[str] = ()
    steady: Collection[str] = ()


@dataclass(frozen=True)
class Part:
    """A part of a tensor in a checkpoint: where it lies, which process saves it, and where that one holds it."""

    box: Box
    owner: int
    place: Box

    def of(self, own: Tensor) -> Tensor:
        """Returns this part of the owner's tensor."""
        held = local(own).detach()
        return held[self.place.slices(Box.of(held.shape))]


@dataclass(frozen=True)
class Saved:
    """A tensor in a checkpoint: its type, its complete shape and its parts."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: list[Part]


@dataclass(frozen=True)
class Plan:
    """The tensors of all processes that are saved under one name, and the values that this process saves.

    Args:
        name: their name.
        saved: the tensors by name, the same on every process, those with the longest elements first.
        values: this process's parts of them by name and box; they share the memory of its tensors.
        metadata: additional strings for the header.
        steady: names of tensors that change in updates only.
    """

    name: str
    saved: Mapping[str, Saved]
    values: Mapping[tuple[str, Box], Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    steady: Collection[str] = ()

    @property
    def size(self) -> int:
        """Bytes of the complete tensors of all processes."""
        return sum(math.prod(each.shape) * each.dtype.itemsize for each in self.saved.values())


def planned(peers: Peers, group: Group, spread: bool) -> Plan:
    """Decides which process saves which part of the tensors; every process must call it.

    Args:
        peers: the processes.
        group: this process's tensors.
        spread: whether the least busy process that has a part saves it; otherwise the first one does.

    Raises:
        CheckpointError: if a checkpoint cannot hold a tensor.
    """
    own = {name: (tensor.dtype, tuple(tensor.shape), own_parts(tensor)) for name, tensor in group.tensors.items()}
    if unknown := [name for name, (dtype, _, _) in own.items() if dtype not in DTYPE_NAMES]:
        types = sorted({str(own[name][0]) for name in unknown})
        raise CheckpointError(f"a checkpoint cannot hold tensors of type {', '.join(types)}: {', '.join(unknown)}")
    dtypes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    holders: dict[str, dict[Box, dict[int, Box]]] = {}
    for rank, held in enumerate(peers.objects(own)):
        for name, (dtype, shape, boxes) in held.items():
            dtypes[name] = dtype, shape
            for box, place in boxes.items():
                holders.setdefault(name, {}).setdefault(box, {})[rank] = place
    saved, busy = {}, [0] * peers.size
    for name in sorted(dtypes, key=lambda name: (-dtypes[name][0].itemsize, name)):
        dtype, shape = dtypes[name]
        parts = []
        for box, places in holders[name].items():
            if box.size or not math.prod(shape):  # a process may hold nothing of a tensor that is not empty
                several = spread and name not in group.first_only
                owner = min(places, key=lambda rank: (busy[rank], rank)) if several else min(places)
                busy[owner] += box.size * dtype.itemsize
                parts.append(Part(box, owner, places[owner]))
        saved[name] = Saved(dtype, shape, parts)
    return Plan(group.name, saved, values_of(peers.rank, group, saved), group.metadata, group.steady)


def values_of(rank: int, group: Group, saved: Mapping[str, Saved]) -> dict[tuple[str, Box], Tensor]:
    """Returns the parts of tensors that a process saves, by name and box; they share the memory of its tensors."""
    return {
        (name, part.box): part.of(group.tensors[name])
        for name, each in saved.items()
        for part in each.parts
        if part.owner == rank
    }

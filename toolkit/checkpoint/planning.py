"""Decides which process saves which part of the tensors of a checkpoint, and copies it."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from toolkit.base.errors import CheckpointError, RunError
from toolkit.base.shards import Box, local, own_parts
from toolkit.checkpoint.tensors import DTYPES
from toolkit.distributed.collectives import Peers

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Group:
    """Tensors that are saved under one name."""

    name: str  # `model`, `optimizer` or the name of a callback
    tensors: Mapping[str, Tensor]  # tensors by name, as far as this process has them; they may be split over processes
    metadata: Mapping[str, str] = field(default_factory=dict)  # additional strings for the header
    first_only: Collection[str] = ()  # those that may differ between processes; the lowest rank's are saved
    steady: Collection[str] = ()  # those that change in updates only


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
    """The tensors of all processes that are saved under one name, and the values that this process saves."""

    name: str
    saved: Mapping[str, Saved]  # the tensors by name, the same on every process, those with the longest elements first
    values: Mapping[tuple[str, Box], Tensor]  # this process's parts by name and box; they share its tensors' memory
    metadata: Mapping[str, str] = field(default_factory=dict)  # additional strings for the header
    steady: Collection[str] = ()  # names of those that change in updates only

    @property
    def size(self) -> int:
        """Bytes of the complete tensors of all processes."""
        return sum(math.prod(each.shape) * each.dtype.itemsize for each in self.saved.values())


def planned(peers: Peers, group: Group, spread: bool) -> Plan:
    """Decides which process saves which part of the tensors; every process must call it.

    With `spread`, the least busy process that has a part saves it, otherwise the first one. Raises CheckpointError if a
    checkpoint cannot hold a tensor.
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


Key = tuple[str, str, Box]
"""Name of the group, name of the tensor, and part of it."""


class Copy:
    """Copies under way: pairs in CPU memory, filled by `run`, and an event after the last copy from a GPU, or None."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], fetched: torch.cuda.Event | None) -> None:
        self._pairs, self._fetched = pairs, fetched
        self._done = threading.Event()

    def run(self) -> None:
        """Fills the copies, and returns when all are complete. Call it in the thread that writes them."""
        try:
            with torch.no_grad():
                for source, target in self._pairs:
                    target.copy_(source)
        finally:
            self._pairs = ()
            self._done.set()
        if self._fetched is not None:
            self._fetched.synchronize()

    def wait(self) -> None:
        """Returns when the originals in CPU memory may change; later work of the GPU waits for those in its memory."""
        self._done.wait()
        if self._fetched is not None:
            torch.cuda.current_stream().wait_event(self._fetched)


class Snapshot:
    """Copies in CPU memory, whose memory is used again for the next ones."""

    def __init__(self) -> None:
        self._kept: dict[Key, Tensor] = {}
        self._stream: torch.cuda.Stream | None = None

    @property
    def size(self) -> int:
        """Memory of the copies, in bytes."""
        return sum(copy.nbytes for copy in self._kept.values())

    def begin(self, plans: Sequence[Plan]) -> tuple[list[Plan], Copy]:
        """Begins to copy this process's values of plans; the copies of the snapshot before must not be needed any more.

        Values on a GPU are copied by a stream beside the training's, values in CPU memory by `Copy.run`; those that may
        change before the next update are copied here.

        Returns:
            Plans with the copies, and the copy that fills them.

        Raises:
            RunError: if there is no memory for the copies.
        """
        kept: dict[Key, Tensor] = {}
        pairs: list[tuple[Tensor, Tensor]] = []
        on_gpu: list[tuple[Tensor, Tensor]] = []
        copied = []
        for plan in plans:
            values = {}
            for (name, box), value in plan.values.items():
                key = plan.name, name, box
                values[name, box] = kept[key] = target = self._memory(key, value)
                if name in plan.steady and value.is_cuda:
                    on_gpu.append((value, target))
                elif name in plan.steady and value.device == target.device:
                    pairs.append((value, target))
                else:
                    target.copy_(value)
            copied.append(replace(plan, values=values))
        self._kept = kept
        return copied, Copy(pairs, self._fetch(on_gpu))

    def _memory(self, key: Key, value: Tensor) -> Tensor:
        """Returns memory for a copy, from the last snapshot if possible."""
        kept = self._kept.get(key)
        if kept is not None and (kept.shape, kept.dtype) == (value.shape, value.dtype):
            return kept
        try:
            return torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        except (RuntimeError, MemoryError) as error:
            raise RunError(
                f"there is no memory for the copy of the {key[0]} that is written while training continues "
                f"({str(error).splitlines()[0]}); set checkpoint.async_save to false, and resume with "
                "checkpoint.resume=auto"
            ) from error

    def _fetch(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> torch.cuda.Event | None:
        if not pairs:
            return None
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)
        return self._stream.record_event()

"""Writes named tensors that are split over processes: complete into one file, or each process its share.

torch's `HuggingFaceStorageWriter` also writes such shards, but its arguments differ between torch 2.8 and 2.13, it
serializes all tensors of a process in memory before it writes one, and it computes no hash. What is written here has
its format, so that its reader reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.base.errors import CheckpointError
from toolkit.base.run_folder import CheckpointFolder
from toolkit.base.shards import Box, local, own_parts
from toolkit.checkpoint.manifest import FileEntry
from toolkit.checkpoint.store import not_written
from toolkit.checkpoint.tensors import DTYPES, OFFSETS, OFFSETS_KEY, SavedTensors, bytes_of
from toolkit.distributed.collect import objects_of_all
from toolkit.distributed.collectives import on_every

if TYPE_CHECKING:
    from accelerate import Accelerator

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8
"""The header's length in bytes is a multiple of this."""


@dataclass(frozen=True)
class Group:
    """Tensors that are saved under one name.

    Args:
        name: `model`, `optimizer` or the name of a callback.
        tensors: tensors by name, as far as this process has them; they may be split over processes.
        metadata: additional strings for the header.
        first_only: names of tensors that may differ between processes; those of the lowest rank are saved.
    """

    name: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    first_only: Collection[str] = ()


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


def write_groups(
    accelerator: Accelerator, folder: Path, groups: Iterable[Group], sharded: bool
) -> dict[str, FileEntry]:
    """Writes tensors into a new checkpoint. Every process must call it.

    Args:
        accelerator: the run's.
        folder: the checkpoint's folder; if the tensors are sharded, every process must see it.
        groups: the tensors.
        sharded: whether each process writes its share into its own file. Otherwise the main process writes complete
            tensors into one file per group, and holds one of them at a time.

    Returns:
        Sizes and hashes of all files by their paths in the folder, on the main process.

    Raises:
        CheckpointError: if a checkpoint cannot hold a tensor.
        RunError: on every process, if one of them cannot write.
    """
    written: dict[str, FileEntry] = {}
    for group in groups:
        saved = planned(accelerator, group, spread=sharded)
        write = _write_shard if sharded else _write_complete
        own = on_every(accelerator, write, accelerator, folder, group, saved)
        for entries in objects_of_all(own):
            written |= entries
    return written


def copy_tensors(folder: Path, name: str, saved: SavedTensors, sharded: bool) -> dict[str, FileEntry]:
    """Writes the tensors of one checkpoint into another, in this process alone, one at a time.

    Args:
        folder: the new checkpoint's folder.
        name: name under which they were saved.
        saved: the tensors.
        sharded: whether to write them as the shard of one process.

    Returns:
        Size and hash of the file by its path in the folder.

    Raises:
        OSError: if it cannot be written.
    """
    files = CheckpointFolder(folder)
    path = files.shard(name, 0, 1) if sharded else files.callback(name)
    path.parent.mkdir(exist_ok=True)
    metadata = {key: text for key, text in saved.metadata.items() if key != OFFSETS_KEY}
    if sharded:
        metadata[OFFSETS_KEY] = json.dumps({key: {OFFSETS: [0] * each.dim()} for key, each in saved.entries.items()})
    order = sorted(saved.entries, key=lambda key: (-saved.entries[key].itemsize, key))
    entries = {key: (saved.entries[key].dtype, saved.entries[key].shape) for key in order}
    entry = write_file(path, entries, (saved[key] for key in order), metadata)
    return {path.relative_to(folder).as_posix(): entry}


def write_file(
    path: Path,
    entries: Mapping[str, tuple[torch.dtype, Sequence[int]]],
    tensors: Iterable[Tensor],
    metadata: Mapping[str, str],
) -> FileEntry:
    """Writes a safetensors file tensor by tensor, and flushes it to the disk.

    Args:
        path: the file, which must not exist.
        entries: types and shapes by name, those with the longest elements first, so that all are aligned.
        tensors: the tensors in this order, on any device.
        metadata: additional strings for the header.

    Returns:
        The size and the hash of what was written.

    Raises:
        OSError: if it cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in entries.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest, size = hashlib.sha256(), 0
    contents = (bytes_of(tensor.detach().cpu().contiguous()) for tensor in tensors)
    with path.open("xb") as file:
        for content in chain([memoryview(len(text).to_bytes(8, "little") + text)], contents):
            file.write(content)
            digest.update(content)
            size += len(content)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


def planned(accelerator: Accelerator, group: Group, spread: bool) -> dict[str, Saved]:
    """Decides which process saves which part of the tensors; every process must call it.

    Args:
        accelerator: the run's Accelerator.
        group: this process's tensors.
        spread: whether the least busy process that has a part saves it; otherwise the first one does.

    Returns:
        The tensors of all processes by name, the same on every process, those with the longest elements first.

    Raises:
        CheckpointError: if a checkpoint cannot hold a tensor.
    """
    own = {name: (tensor.dtype, tuple(tensor.shape), own_parts(tensor)) for name, tensor in group.tensors.items()}
    if unknown := [name for name, (dtype, _, _) in own.items() if dtype not in _DTYPE_NAMES]:
        types = sorted({str(own[name][0]) for name in unknown})
        raise CheckpointError(f"a checkpoint cannot hold tensors of type {', '.join(types)}: {', '.join(unknown)}")
    dtypes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    holders: dict[str, dict[Box, dict[int, Box]]] = {}
    for rank, held in enumerate(objects_of_all(own)):
        for name, (dtype, shape, boxes) in held.items():
            dtypes[name] = dtype, shape
            for box, place in boxes.items():
                holders.setdefault(name, {}).setdefault(box, {})[rank] = place
    saved, busy = {}, [0] * accelerator.num_processes
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
    return saved


def _write_complete(
    accelerator: Accelerator, folder: Path, group: Group, saved: Mapping[str, Saved]
) -> dict[str, FileEntry]:
    path = CheckpointFolder(folder).callback(group.name)
    try:
        entry = write_complete(accelerator, path, group, saved)
    except OSError as error:
        raise not_written(folder, error) from error
    return {path.name: entry} if entry else {}


def write_complete(accelerator: Accelerator, path: Path, group: Group, saved: Mapping[str, Saved]) -> FileEntry | None:
    """Writes one file on the main process, to which the others send their parts; every process must call it.

    Args:
        accelerator: the run's Accelerator.
        path: the file, which must not exist.
        group: this process's tensors.
        saved: what `planned` returned for them.

    Returns:
        Size and hash of the file, None on other processes than the main one.

    Raises:
        OSError: on the main process, if it cannot be written.
    """
    stream = _gathered(accelerator, saved, group.tensors)
    try:
        if accelerator.is_main_process:
            entries = {name: (each.dtype, each.shape) for name, each in saved.items()}
            return write_file(path, entries, stream, group.metadata)
    finally:
        deque(stream, maxlen=0)  # the others send all tensors, also after an error of the main process
    return None


def _gathered(accelerator: Accelerator, saved: Mapping[str, Saved], tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Yields one complete tensor after another on the main process, and empty ones on the others."""
    rank, device = accelerator.process_index, accelerator.device
    for name, each in saved.items():
        complete = torch.empty(each.shape if rank == 0 else 0, dtype=each.dtype)
        for part in each.parts:
            if part.owner == rank:
                values = part.of(tensors[name])
            if part.owner == rank == 0 and part.box.shape == each.shape:
                complete = values
            elif part.owner == rank == 0:
                complete[part.box.slices(Box.of(each.shape))] = values.cpu()
            elif part.owner == rank:
                dist.send(values.to(device).contiguous().view(-1).view(torch.uint8), dst=0)
            elif rank == 0:
                values = torch.empty(part.box.shape, dtype=each.dtype, device=device)
                dist.recv(values.view(-1).view(torch.uint8), src=part.owner)
                complete[part.box.slices(Box.of(each.shape))] = values.cpu()
        yield complete


def _write_shard(
    accelerator: Accelerator, folder: Path, group: Group, saved: Mapping[str, Saved]
) -> dict[str, FileEntry]:
    """Writes this process's share; a file holds one part of a tensor, so several parts take several files."""
    rank, processes = accelerator.process_index, accelerator.num_processes
    counts = (Counter(part.owner for part in each.parts) for each in saved.values())
    files = max((max(count.values()) for count in counts if count), default=1)
    written = {}
    for number in range(files):
        path = CheckpointFolder(folder).shard(group.name, number * processes + rank, files * processes)
        own = {name: parts[number] for name, each in saved.items()
               if len(parts := [part for part in each.parts if part.owner == rank]) > number}  # fmt: skip
        offsets = json.dumps({name: {OFFSETS: part.box.start} for name, part in own.items()})
        metadata = {**(group.metadata if rank == number == 0 else {}), OFFSETS_KEY: offsets}
        entries = {name: (saved[name].dtype, part.box.shape) for name, part in own.items()}
        try:
            path.parent.mkdir(exist_ok=True)
            tensors = (part.of(group.tensors[name]) for name, part in own.items())
            written[path.relative_to(folder).as_posix()] = write_file(path, entries, tensors, metadata)
        except OSError as error:
            raise not_written(folder, error) from error
    return written

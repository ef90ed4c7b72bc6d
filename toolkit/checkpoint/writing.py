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
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from toolkit.base.errors import RunError
from toolkit.base.files import disk_problem, temporary_name
from toolkit.base.run_folder import CheckpointFolder
from toolkit.base.shards import Box
from toolkit.checkpoint import store
from toolkit.checkpoint.contents import model_group
from toolkit.checkpoint.manifest import FileEntry
from toolkit.checkpoint.planning import DTYPE_NAMES, Plan, planned
from toolkit.checkpoint.store import not_written
from toolkit.checkpoint.tensors import OFFSETS, OFFSETS_KEY, SavedTensors, bytes_of
from toolkit.distributed.collectives import Peers, peers_of_run

_Write = Callable[[Peers, Path, Plan], dict[str, FileEntry]]
_ALIGNMENT = 8
"""The header's length in bytes is a multiple of this."""


def write_groups(peers: Peers, folder: Path, plans: Sequence[Plan], sharded: bool) -> dict[str, FileEntry]:
    """Writes tensors on every process: each its share if `sharded`, else the main one; all raise RunError together."""
    written: dict[str, FileEntry] = {}
    size = sum(plan.size for plan in plans)
    for plan in plans:
        own = peers.on_every(_written, write_shard if sharded else _write_complete, peers, folder, plan, size)
        for entries in peers.objects(own):
            written |= entries
    return written


def copy_tensors(folder: Path, name: str, saved: SavedTensors, sharded: bool) -> dict[str, FileEntry]:
    """Writes the tensors `name` of one checkpoint into another's folder, in this process alone, one at a time.

    With `sharded`, they are the shard of one process. Returns the file's entry by its path in the folder. Raises
    OSError if it cannot be written.
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
    """Writes and flushes a safetensors file tensor by tensor, in the order of `entries`: longest elements first."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in entries.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
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


def _written(write: _Write, peers: Peers, folder: Path, plan: Plan, size: int) -> dict[str, FileEntry]:
    try:
        return write(peers, folder, plan)
    except OSError as error:
        raise not_written(folder, error, size) from error


def _write_complete(peers: Peers, folder: Path, plan: Plan) -> dict[str, FileEntry]:
    path = CheckpointFolder(folder).callback(plan.name)
    entry = write_complete(peers, path, plan)
    return {path.name: entry} if entry else {}


def write_complete(peers: Peers, path: Path, plan: Plan) -> FileEntry | None:
    """Writes a file on the main process, to which the others send; every process must call it, None on others."""
    stream = _gathered(peers, plan)
    try:
        if peers.rank == 0:
            entries = {name: (each.dtype, each.shape) for name, each in plan.saved.items()}
            return write_file(path, entries, stream, plan.metadata)
    finally:
        deque(stream, maxlen=0)  # the others send all tensors, also after an error of the main process
    return None


def _gathered(peers: Peers, plan: Plan) -> Iterator[Tensor]:
    """Yields one complete tensor after another on the main process, and empty ones on the others."""
    for name, each in plan.saved.items():
        complete = torch.empty(each.shape if peers.rank == 0 else 0, dtype=each.dtype)
        for part in each.parts:
            own = plan.values.get((name, part.box))
            if own is not None and peers.rank > 0:
                peers.send(own, to=0)
            elif own is not None and part.box.shape == each.shape:
                complete = own
            elif peers.rank == 0:
                values = own
                if values is None:
                    values = torch.empty(part.box.shape, dtype=each.dtype)
                    peers.receive(values, part.owner)
                complete[part.box.slices(Box.of(each.shape))] = values.cpu()
        yield complete


def write_shard(peers: Peers, folder: Path, plan: Plan) -> dict[str, FileEntry]:
    """Writes this process's share; a file holds one part of a tensor, so several parts take several files."""
    counts = (Counter(part.owner for part in each.parts) for each in plan.saved.values())
    files = max((max(count.values()) for count in counts if count), default=1)
    written = {}
    for number in range(files):
        path = CheckpointFolder(folder).shard(plan.name, number * peers.size + peers.rank, files * peers.size)
        own = {name: parts[number].box for name, each in plan.saved.items()
               if len(parts := [part for part in each.parts if part.owner == peers.rank]) > number}  # fmt: skip
        offsets = json.dumps({name: {OFFSETS: box.start} for name, box in own.items()})
        metadata = {**(plan.metadata if peers.rank == number == 0 else {}), OFFSETS_KEY: offsets}
        entries = {name: (plan.saved[name].dtype, box.shape) for name, box in own.items()}
        path.parent.mkdir(exist_ok=True)
        tensors = (plan.values[item] for item in own.items())
        written[path.relative_to(folder).as_posix()] = write_file(path, entries, tensors, metadata)
    return written


def collected(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns complete tensors on the main process; every process must call it, with its tensors, split or not.

    They are written into a file in `folder`, one after another, which the main process maps into memory and removes. So
    the operating system can free their memory and read them again, and the disk space is freed with the tensors. Of
    tensors that share memory (tied weights), one is returned; on other processes, none. Raises RunError on every
    process, if the file cannot be written.
    """
    peers = peers_of_run()
    plan = planned(peers, model_group(tensors), spread=False)
    temporary = peers.on_first(_temporary, folder, plan)
    try:
        return peers.on_every(_collected, peers, temporary, plan)
    finally:
        if peers.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary(folder: Path, plan: Plan) -> Path:
    temporary = temporary_name(folder / "complete-model")
    try:
        temporary.mkdir()
    except OSError as error:
        raise _not_written(folder, error, plan) from error
    return temporary


def _collected(peers: Peers, folder: Path, plan: Plan) -> dict[str, Tensor]:
    file = folder / "model.safetensors"
    try:
        write_complete(peers, file, plan)
        if peers.rank:
            return {}
        with safe_open(file, framework="pt") as mapped:
            return {name: mapped.get_tensor(name) for name in plan.saved}
    except OSError as error:
        raise _not_written(folder.parent, error, plan) from error


def _not_written(folder: Path, error: Exception, plan: Plan) -> RunError:
    reason = disk_problem(error, folder.absolute(), plan.size) or error
    return RunError(
        f"cannot write a complete copy of the model into {folder.absolute()}: {reason}. Checkpoints are intact: free "
        "some space, then resume with checkpoint.resume=auto"
    )


@dataclass(frozen=True)
class NewCheckpoint:
    """The content of a checkpoint, independent of the continuing training."""

    root: Path  # the run's `checkpoints` folder
    step: int  # number of completed optimizer steps
    plans: Sequence[Plan]
    files: Mapping[str, bytes]  # contents of all other files by path; used on the main process only
    sharded: bool  # whether each process writes its share
    keep: int | None  # number of newest checkpoints to keep; None keeps all
    best: int | None  # step that is kept in addition, or None

    @property
    def size(self) -> int:
        """Bytes of all tensors and files."""
        return sum(plan.size for plan in self.plans) + sum(map(len, self.files.values()))


def commit(peers: Peers, new: NewCheckpoint) -> None:
    """Writes a checkpoint, then removes surplus ones; every process must call it, and raises RunError if that fails."""
    written: dict[str, FileEntry] = {}
    with ExitStack() as transaction:
        opened = store.new_checkpoint(new.root, new.step, written, new.size)
        folder = peers.on_first(transaction.enter_context, opened)
        written |= write_groups(peers, folder, new.plans, new.sharded)
        peers.on_first(finish_checkpoint, folder, new, transaction)


def finish_checkpoint(folder: Path, new: NewCheckpoint, transaction: ExitStack) -> None:
    """Writes what the main process alone knows, ends the transaction, and removes surplus checkpoints."""
    with transaction:
        for name, content in new.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    store.prune(new.root, new.keep, () if new.best is None else {new.best})

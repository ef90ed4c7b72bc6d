"""Reads and verifies the tensors of a checkpoint, each process the parts that it needs.

The format is safetensors: `<name>.safetensors`, or files of each process, `<name>/shard-*.safetensors`, whose
headers say where their tensors lie in the complete ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from toolkit.api.mesh import Mesh
from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.files import file_sha256, parse_json
from toolkit.base.run_folder import CheckpointFolder
from toolkit.base.shards import Box
from toolkit.checkpoint.manifest import FileEntry, files_of, read_manifest, reason

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""Data types by their names in safetensors files."""
OFFSETS_KEY, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""Where torch's HuggingFaceStorageWriter writes the first index of each tensor, so that torch reads our shards."""
ONE_PROCESS = Mesh()


class DamagedCheckpoint(CheckpointError):  # noqa: N818 - the name describes the checkpoint
    """A file of a checkpoint was found damaged while loading; the model or optimizer it was loaded into is invalid.

    `problem` names the file and what is wrong with it, in the words of `verify`.
    """

    def __init__(self, checkpoint: Checkpoint, problem: str) -> None:
        self.checkpoint, self.problem = checkpoint, problem
        super().__init__(f"the checkpoint {checkpoint.path.absolute()} is damaged ({problem})")

    def __reduce__(self) -> tuple[type[DamagedCheckpoint], tuple[Checkpoint, str]]:
        return DamagedCheckpoint, (self.checkpoint, self.problem)  # errors are pickled to send them between ranks


class TensorFile:
    """A safetensors file whose header is read, and checked with ValueError; if `hashed`, `read` sets its `sha256`."""

    def __init__(self, path: Path, hashed: bool) -> None:
        self.path, self.hashed, self.sha256 = path, hashed, ""
        self.boxes: dict[str, Box] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if length > size - 8:
                raise ValueError("the header is longer than the file")
            header: dict[str, Any] = parse_json(file.read(length))
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        offsets = parse_json(self.metadata.get(OFFSETS_KEY, "{}"))
        self._data, end = 8 + length, 0
        self._begin: dict[str, int] = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (begin, after) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            if begin != end or after - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{name} does not match its size")
            start = offsets[name][OFFSETS] if name in offsets else [0] * len(shape)
            self.boxes[name] = Box(tuple(start), tuple(shape))
            self.dtypes[name], self._begin[name], end = dtype, begin, after
        if self._data + end != size:
            raise ValueError("the tensors do not cover the file")

    def read(self, wanted: Mapping[str, Box]) -> Iterator[tuple[str, Box, Tensor]]:
        """Yields the names, boxes and values of what this file has of the wanted boxes, in file order.

        A file that is hashed is read completely, any other only where it has something wanted.
        """
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            if self.hashed:
                digest.update(file.read(self._data))
            for name, own in self.boxes.items():
                box = own.shared_with(wanted[name]) if name in wanted else None
                if self.hashed:
                    content = self.part_of(file, name, own)
                    digest.update(bytes_of(content))
                    if box is not None and box.size:
                        yield name, box, content[box.slices(own)]
                elif box is not None and box.size:
                    yield name, box, self.part_of(file, name, box)
        if self.hashed:
            self.sha256 = digest.hexdigest()

    def part_of(self, file: IO[bytes], name: str, box: Box) -> Tensor:
        """Reads a part of a tensor and nothing else."""
        own, dtype = self.boxes[name], self.dtypes[name]
        values = torch.empty(box.shape, dtype=dtype)
        content, done = bytes_of(values), 0
        for start, count in _runs(box.slices(own), own.shape):
            file.seek(self._data + self._begin[name] + start * dtype.itemsize)
            length = count * dtype.itemsize
            if file.readinto(content[done : done + length]) != length:  # type: ignore[attr-defined] # binary files have it
                raise ValueError("the file is too short")
            done += length
        return values


class SavedTensors(Mapping[str, Tensor]):
    """The tensors saved under one name, read on each access; `entries` are their types and shapes."""

    def __init__(self, files: list[TensorFile]) -> None:
        self.files = files
        self.metadata = {key: text for file in files for key, text in file.metadata.items()}
        boxes: dict[str, list[Box]] = {}
        dtypes = {name: dtype for file in files for name, dtype in file.dtypes.items()}
        for file in files:
            for name, box in file.boxes.items():
                boxes.setdefault(name, []).append(box)
        self.entries: dict[str, Tensor] = {}
        for name, parts in boxes.items():
            ends = [[a + n for a, n in zip(box.start, box.shape, strict=True)] for box in parts]
            shape = [max(each) for each in zip(*ends, strict=True)]
            if sum(box.size for box in parts) != math.prod(shape):
                raise ValueError(f"{name} is incomplete")
            self.entries[name] = torch.empty(shape, dtype=dtypes[name], device="meta")

    def read(self, wanted: Mapping[str, Box]) -> Iterator[tuple[str, Box, Tensor]]:
        """Yields names, boxes and values, which together are the wanted boxes."""
        for file in self.files:
            yield from file.read(wanted)

    def __getitem__(self, name: str) -> Tensor:
        entry = self.entries[name]
        complete = torch.empty(entry.shape, dtype=entry.dtype)
        for file in self.files:
            if name in file.boxes:
                with file.path.open("rb") as opened:
                    box = file.boxes[name]
                    complete[box.slices(Box.of(entry.shape))] = file.part_of(opened, name, box)
        return complete

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@contextmanager
def verified_tensors(checkpoint: Checkpoint, name: str, mesh: Mesh = ONE_PROCESS) -> Iterator[SavedTensors]:
    """Opens the tensors that were saved under a name and verifies their files when the block ends.

    The processes of `mesh` share the work: each file is hashed by one of them. So an error of any process must be
    raised on all. An error inside the block may be caused by damaged bytes; it is raised only if all files are intact.
    Raises DamagedCheckpoint if a file does not match the manifest or cannot be read.
    """
    expected = _manifest_files(checkpoint)
    own = files_of(expected, name)
    if not own:
        raise DamagedCheckpoint(
            checkpoint, f"{CheckpointFolder(checkpoint.path).callback(name).name}: not in the manifest"
        )
    hashed = {file for number, file in enumerate(sorted(expected)) if number % mesh.size == mesh.rank}
    files: list[TensorFile] = []
    failure: Exception | None = None
    try:
        files = [TensorFile(checkpoint.path / file, file in hashed) for file in own]
        yield SavedTensors(files)
    except Exception as error:
        failure = error
    known = {file.path: file.sha256 for file in files}
    for file in own:
        if file not in hashed and failure is None:
            continue
        path = checkpoint.path / file
        try:
            found = known.get(path) or file_sha256(path)
        except OSError as error:
            raise DamagedCheckpoint(checkpoint, f"{file}: {reason(error)}") from error
        if found != expected[file].sha256:
            raise DamagedCheckpoint(checkpoint, f"{file}: sha256 differs") from failure
    if isinstance(failure, OSError):
        raise DamagedCheckpoint(checkpoint, f"{name}: {reason(failure)}") from failure
    if failure is not None:
        raise failure


def has_tensors(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a checkpoint has tensors of this name; raises DamagedCheckpoint if its manifest cannot be read."""
    return bool(files_of(_manifest_files(checkpoint), name))


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns the memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _manifest_files(checkpoint: Checkpoint) -> Mapping[str, FileEntry]:
    try:
        return read_manifest(checkpoint.path).files
    except (OSError, ValueError) as error:
        manifest = CheckpointFolder(checkpoint.path).manifest.name
        raise DamagedCheckpoint(checkpoint, f"{manifest}: {reason(error)}") from error


def _runs(box: Sequence[slice], shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields first element and number of elements of each contiguous run of a box in a tensor of this shape."""
    dim = len(shape)
    while dim and box[dim - 1].stop - box[dim - 1].start == shape[dim - 1]:
        dim -= 1  # complete last dimensions belong to one run
    if dim == 0:
        yield 0, math.prod(shape)
        return
    outer, last = box[: dim - 1], box[dim - 1]
    inner = math.prod(shape[dim:])
    for index in product(*(range(part.start, part.stop) for part in outer)):
        row = 0
        for position, size in zip((*index, last.start), shape[:dim], strict=True):
            row = row * size + position
        yield row * inner, (last.stop - last.start) * inner

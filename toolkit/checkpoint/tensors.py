"""Reads and verifies the tensors of a checkpoint in one pass, without holding a file in memory twice."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.run_folder import CheckpointFolder
from toolkit.checkpoint.manifest import read_manifest, reason

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Data types by their names in safetensors files."""
_CHUNK = 2**20


class DamagedCheckpoint(CheckpointError):  # noqa: N818 - the name describes the checkpoint
    """A file of a checkpoint was found damaged while loading; the model or optimizer it was loaded into is invalid.

    Args:
        checkpoint: the checkpoint.
        problem: the file and what is wrong with it, in the words of `verify`.
    """

    def __init__(self, checkpoint: Checkpoint, problem: str) -> None:
        self.checkpoint, self.problem = checkpoint, problem
        super().__init__(f"the checkpoint {checkpoint.path.absolute()} is damaged ({problem})")

    def __reduce__(self) -> tuple[type[DamagedCheckpoint], tuple[Checkpoint, str]]:
        return DamagedCheckpoint, (self.checkpoint, self.problem)  # errors are pickled to send them between ranks


class TensorReader:
    """Iterates once over the names and tensors of an open safetensors file, in file order.

    Attributes:
        shapes: shape of each tensor, by name.
        metadata: additional strings in the file's header, by key.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.shapes: dict[str, list[int]] = {}
        self.metadata: dict[str, str] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def read_header(self) -> None:
        """Reads the header: names, types and shapes of the tensors.

        Raises:
            ValueError: if the header does not match the file.
        """
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._read(8).numpy().tobytes(), "little")
        if length > size - 8:
            raise ValueError("the header is longer than the file")
        header = json.loads(self._read(length).numpy().tobytes())
        self.metadata = header.pop("__metadata__", {})
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (begin, after) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            if begin != end or after - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{name} does not match its size")
            self._dtypes[name], self.shapes[name], end = dtype, shape, after
        if 8 + length + end != size:
            raise ValueError("the tensors do not cover the file")

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, shape in self.shapes.items():
            dtype = self._dtypes[name]
            yield name, self._read(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def finish(self) -> str:
        """Reads the rest and returns the sha256 of the complete file."""
        while chunk := self._file.read(_CHUNK):
            self._digest.update(chunk)
        return self._digest.hexdigest()

    def _read(self, size: int) -> Tensor:
        """Returns the next bytes as a new uint8 tensor `[size]`."""
        buffer = torch.empty(size, dtype=torch.uint8)
        view = buffer.numpy().data
        count = self._file.readinto(view) if size else 0  # type: ignore[attr-defined] # a binary file has it
        self._digest.update(view[:count])
        if count != size:
            raise ValueError("the file is too short")
        return buffer


@contextmanager
def verified_tensors(checkpoint: Checkpoint, path: Path) -> Iterator[TensorReader]:
    """Opens a tensor file of a checkpoint and verifies its sha256 when the block ends.

    An error inside the block may be caused by damaged bytes; it is raised only if the file is intact.

    Args:
        checkpoint: the checkpoint.
        path: the tensor file.

    Yields:
        The file's tensors, read one by one.

    Raises:
        DamagedCheckpoint: if the file does not match the manifest or cannot be read.
    """
    name = path.relative_to(checkpoint.path).as_posix()
    try:
        expected = read_manifest(checkpoint.path).files
    except (OSError, ValueError) as error:
        manifest = CheckpointFolder(checkpoint.path).manifest.name
        raise DamagedCheckpoint(checkpoint, f"{manifest}: {reason(error)}") from error
    if name not in expected:
        raise DamagedCheckpoint(checkpoint, f"{name}: not in the manifest")
    try:
        with path.open("rb") as file:
            reader, failure = TensorReader(file), None
            try:
                reader.read_header()
                yield reader
            except Exception as error:
                failure = error
            if reader.finish() != expected[name].sha256:
                raise DamagedCheckpoint(checkpoint, f"{name}: sha256 differs") from failure
    except OSError as error:
        raise DamagedCheckpoint(checkpoint, f"{name}: {reason(error)}") from error
    if failure is not None:
        raise failure

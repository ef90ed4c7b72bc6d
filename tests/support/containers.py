"""Writes the same rows, or the same folder of files, in every format that holds many in one file."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Rows = Mapping[str, Sequence[Any]]


def tar_of(folder: Path, archive: Path, top: str = "") -> Path:
    """Packs the files of a folder, in the order of the file system, below `top`."""
    with tarfile.open(archive, "w") as tar:
        for file in folder.rglob("*"):
            tar.add(file, f"{top}{file.relative_to(folder).as_posix()}", recursive=False)
    return archive


def zip_of(folder: Path, archive: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(archive, "w", method) as packed:
        for file in folder.rglob("*"):
            packed.write(file, file.relative_to(folder).as_posix())
    return archive


def table_of(rows: Rows) -> pa.Table:
    return pa.table({name: pa.array(list(values)) for name, values in rows.items()})


def parquet_of(rows: Rows, file: Path) -> Path:
    pq.write_table(table_of(rows), file)
    return file


def arrow_of(rows: Rows, file: Path, stream: bool = False) -> Path:
    table = table_of(rows)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return file


def hdf5_of(rows: Rows, file: Path, group: str = "/") -> Path:
    """Writes columns of text, bytes of files (`{"bytes", "path"}`) and numbers."""
    with h5py.File(file, "a") as opened:
        place = opened.require_group(group)
        for name, values in rows.items():
            if isinstance(values[0], Mapping):
                column = place.create_dataset(name, len(values), h5py.vlen_dtype(np.uint8))
                for number, value in enumerate(values):
                    column[number] = np.frombuffer(value["bytes"], np.uint8)
            elif isinstance(values[0], str):
                place.create_dataset(
                    name,
                    data=list(values),
                    dtype=h5py.string_dtype(),
                    compression="gzip",
                    chunks=(min(7, len(values)),),
                )
            else:
                place.create_dataset(name, data=np.asarray(values))
    return file


def media_rows(folder: Path, column: str) -> dict[str, list[Any]]:
    """Returns the files of a folder of classes with their bytes, in the order of their names."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    names = [file.relative_to(folder).as_posix() for file in files]
    content = [{"bytes": file.read_bytes(), "path": name} for file, name in zip(files, names, strict=True)]
    return {column: content, "label": [name.partition("/")[0] for name in names]}

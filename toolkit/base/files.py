"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_SUFFIX = "toolkit-tmp"
"""Ends the names of files that are not complete yet; nobody else gives such names."""


@contextmanager
def written_whole(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a file to be written; it takes the name `path` only when the block ends without an error.

    Whoever opens `path`, at whatever moment, finds the former file or the new one, never a part. After an error the
    former file is still there.

    Args:
        path: the file; a link is followed.
        mode: `w` for text in UTF-8, `wb` for bytes.

    Yields:
        The open file.

    Raises:
        OSError: if it cannot be written.
    """
    with temporary_file(path) as temporary, temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yields the name of an empty file that takes the name `path` when the block ends, as in `written_whole`.

    For libraries that open files themselves; they may also replace the file they were given.

    Raises:
        OSError: if it cannot be written.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_name(path)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode & 0o777
        yield temporary
        temporary.chmod(mode)  # safetensors makes files that only their owner can read
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """Returns where this process writes what is to become the file `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.{_SUFFIX}")


def is_temporary(path: Path) -> bool:
    """Returns whether `temporary_name` gave a file its name."""
    return path.name.startswith(".") and path.name.endswith(f".{_SUFFIX}")


def sync(path: Path) -> None:
    """Forces a file, or the names in a folder, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Removes incomplete files that killed processes left in `folder`; no other process may be writing there."""
    for file in filter(is_temporary, folder.iterdir()):
        file.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all; JSON has no infinity and no NaN, which become null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    with written_whole(path) as file:
        file.write(text)

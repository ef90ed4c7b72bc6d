"""Reads, writes and verifies a checkpoint's manifest: size and sha256 of every file, and of the manifest itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit.base.files import sync
from toolkit.base.run_folder import CheckpointFolder

FORMAT = 1
HASHED_BYTES = 8 * 2**20
"""Size in bytes above which tensor files are hashed while they are loaded (see `toolkit.checkpoint.tensors`)."""


@dataclass(frozen=True)
class FileEntry:
    """Size and hash of a file in a manifest."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of a checkpoint: its optimizer step, and its files by their path in the folder."""

    step: int
    files: Mapping[str, FileEntry]


def write_manifest(folder: Path, step: int) -> None:
    """Flushes all files of a folder to disk, then writes its manifest.

    Raises:
        OSError: if a file cannot be flushed or written.
    """
    files = {}
    for name, path in _files(folder).items():
        sync(path)
        files[name] = asdict(FileEntry(path.stat().st_size, _sha256(path)))
    content: dict[str, Any] = {"format": FORMAT, "step": step, "files": files}
    content["sha256"] = _own_sha256(content)
    path = CheckpointFolder(folder).manifest
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    for written in [path, *(inside for inside in folder.rglob("*") if inside.is_dir()), folder]:
        sync(written)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a checkpoint.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged or has another format; the message is short.
    """
    content = CheckpointFolder(folder).manifest.read_bytes()
    try:
        found: dict[str, Any] = json.loads(content)
        intact = found.pop("sha256") == _own_sha256(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError("damaged")
    if found["format"] != FORMAT:
        raise ValueError(f"has format {found['format']}, this version of the toolkit reads {FORMAT}")
    return Manifest(found["step"], {name: FileEntry(**entry) for name, entry in found["files"].items()})


def verify(folder: Path) -> list[str]:
    """Checks every byte of a checkpoint against its manifest.

    Returns:
        One short message per problem; empty for a valid checkpoint.
    """
    return _problems(folder, large_files=True)


def verify_small_files(folder: Path) -> list[str]:
    """Checks names and sizes of all files, and the content of those that are not verified while they are loaded.

    Returns:
        One short message per problem; empty if none is found.
    """
    return _problems(folder, large_files=False)


def _problems(folder: Path, large_files: bool) -> list[str]:
    own = CheckpointFolder(folder)
    try:
        files = read_manifest(folder).files
    except (OSError, ValueError) as error:
        return [f"{own.manifest.name}: {reason(error)}"]
    required = [path.name for path in (own.model, own.optimizer, own.state)]
    problems = [f"{name}: not in the manifest" for name in required if name not in files]
    for name, expected in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != expected.size:
                problems.append(f"{name}: size differs ({size} bytes instead of {expected.size})")
            elif (large_files or not _verified_later(name, size)) and _sha256(folder / name) != expected.sha256:
                problems.append(f"{name}: sha256 differs")
        except OSError as error:
            problems.append(f"{name}: {reason(error)}")
    unexpected = [name for name in _files(folder) if name not in {*files, *required, own.manifest.name}]
    return problems + [f"{name}: unexpected file" for name in unexpected]


def reason(error: OSError | ValueError) -> str:
    """Returns a short reason why a file cannot be used."""
    if isinstance(error, OSError):
        return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    return str(error)


def _verified_later(name: str, size: int) -> bool:
    return size > HASHED_BYTES and name.endswith(".safetensors") and "/" not in name


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}


def _own_sha256(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Reads, writes and verifies a checkpoint's manifest: size and sha256 of every file, and of the manifest itself."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.base.errors import CheckpointError
from toolkit.base.files import file_sha256, read_json, sha256, sync
from toolkit.base.run_folder import CheckpointFolder

FORMATS = {"full": 1, "sharded": 2}
"""Numbers of the formats in `checkpoint.format`."""
HASHED_BYTES = 8 * 2**20
"""Size in bytes above which tensor files are hashed while they are loaded (see `toolkit.checkpoint.tensors`)."""
STEP_PREFIX = "step-"
"""Begin of the names of checkpoints' folders."""
_SHARD = re.compile(r"(?P<name>\w+)/shard-\d{5}-of-(?P<size>\d{5})\.safetensors")


@dataclass(frozen=True)
class FileEntry:
    """Size and hash of a file in a manifest."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of a checkpoint: its optimizer step, its files by their path in the folder, and its format."""

    step: int
    files: Mapping[str, FileEntry]
    format: str


def write_manifest(folder: Path, step: int, written: Mapping[str, FileEntry]) -> None:
    """Flushes all files of a folder to disk, then writes its manifest.

    `written` has sizes and hashes of files that were hashed while they were written. Raises OSError if a file cannot be
    flushed or written, or is not as it was written.
    """
    files = {}
    paths = _files(folder) | {name: folder / name for name in written}
    for name, path in paths.items():
        sync(path)
        size = path.stat().st_size
        files[name] = asdict(written.get(name) or FileEntry(size, file_sha256(path)))
        if size != files[name]["size"]:
            raise OSError(f"{name} has {size} bytes, but {files[name]['size']} were written")
    number = FORMATS["sharded" if any(map(_SHARD.fullmatch, files)) else "full"]
    content: dict[str, Any] = {"format": number, "step": step, "files": files}
    content["sha256"] = own_sha256(content)
    manifest = CheckpointFolder(folder).manifest
    manifest.write_text(json.dumps(content, indent=1), encoding="utf-8")
    for each in [manifest, *(inside for inside in folder.rglob("*") if inside.is_dir()), folder]:
        sync(each)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a checkpoint.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged or has another format; the message is short.
    """
    try:
        found: dict[str, Any] = read_json(CheckpointFolder(folder).manifest)
        intact = found.pop("sha256") == own_sha256(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise ValueError("damaged")
    names = {number: name for name, number in FORMATS.items()}
    if not {"format", "step", "files"} <= found.keys() or not isinstance(found["format"], int):
        raise ValueError("has no format, step or files")
    if found["format"] not in names:
        known = " and ".join(map(str, names))
        raise ValueError(f"has format {found['format']}, this version of the toolkit reads {known}")
    try:
        files = {name: FileEntry(**entry) for name, entry in found["files"].items()}
    except (TypeError, AttributeError) as error:
        raise ValueError("has entries that are no size and sha256") from error
    if type(found["step"]) is not int or not all(map(_is_possible, files, files.values())):
        raise ValueError("has values that the toolkit does not write")
    return Manifest(found["step"], files, names[found["format"]])


def _is_possible(name: str, entry: FileEntry) -> bool:
    """Returns whether an entry is of a file in the folder, with values of the right types."""
    inside = "\0" not in name and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
    return inside and type(entry.size) is int and isinstance(entry.sha256, str)


def files_of(files: Iterable[str], name: str) -> list[str]:
    """Returns which of a checkpoint's files hold the tensors of this name: one file, or one shard per process."""
    return sorted(file for file in files if file == f"{name}.safetensors" or _shard_name(file) == name)


def tensor_names(files: Iterable[str]) -> list[str]:
    """Returns the names under which a checkpoint holds tensors: `model`, `optimizer` and those of callbacks."""
    found = {_shard_name(file) or file.removesuffix(".safetensors") for file in files if _is_of_tensors(file)}
    return sorted(found, key=lambda name: (name != "model", name != "optimizer", name))


def verify(folder: Path, large_files: bool = True) -> list[str]:
    """Checks a checkpoint against its manifest, and returns one short message per problem.

    Every byte is checked; without `large_files`, contents that are verified while they are loaded are not.
    """
    own = CheckpointFolder(folder)
    try:
        manifest = read_manifest(folder)
    except (OSError, ValueError) as error:
        return [f"{own.manifest.name}: {reason(error)}"]
    files = manifest.files
    required = _required(own, manifest)
    problems = [f"{name}: not in the manifest" for name in required if name not in files]
    step = folder.name.removeprefix(STEP_PREFIX)
    if folder.name != step and step.isdecimal() and int(step) != manifest.step:
        problems.append(f"{own.manifest.name}: is of step {manifest.step}, not of the folder's")
    for name, expected in files.items():
        try:
            status = (folder / name).stat()
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):  # opening a pipe or a device could wait for ever
                problems.append(f"{name}: not a regular file")
            elif size != expected.size:
                problems.append(f"{name}: size differs ({size} bytes instead of {expected.size})")
            elif not large_files and size > HASHED_BYTES and _is_of_tensors(name):
                continue  # verified while it is loaded
            elif file_sha256(folder / name) != expected.sha256:
                problems.append(f"{name}: sha256 differs")
        except (OSError, ValueError) as error:  # also a name that no file can have
            problems.append(f"{name}: {reason(error)}")
    unexpected = [name for name in _files(folder) if name not in {*files, *required, own.manifest.name}]
    return problems + [f"{name}: unexpected file" for name in unexpected]


def require_intact(folder: Path) -> None:
    """Raises CheckpointError if any byte of a checkpoint differs from its manifest."""
    if problems := verify(folder):
        raise CheckpointError(f"the checkpoint {folder.absolute()} is damaged ({problems[0]})")


def reason(error: OSError | ValueError) -> str:
    """Returns a short reason why a file cannot be used."""
    if isinstance(error, OSError):
        return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    return str(error)


def _required(folder: CheckpointFolder, manifest: Manifest) -> list[str]:
    """Returns the names of the files that a checkpoint of this format must have."""
    if manifest.format == "full":
        return [path.name for path in (folder.model, folder.optimizer, folder.state)]
    shards = [found for file in manifest.files if (found := _SHARD.fullmatch(file))]
    sizes = dict.fromkeys(("model", "optimizer"), max((int(found["size"]) for found in shards), default=1))
    sizes |= {found["name"]: int(found["size"]) for found in shards}
    paths = [folder.shard(name, rank, size) for name, size in sorted(sizes.items()) for rank in range(size)]
    return [path.relative_to(folder.path).as_posix() for path in (*paths, folder.state)]


def _shard_name(file: str) -> str | None:
    found = _SHARD.fullmatch(file)
    return found["name"] if found else None


def _is_of_tensors(file: str) -> bool:
    return _SHARD.fullmatch(file) is not None or (file.endswith(".safetensors") and "/" not in file)


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}


def own_sha256(content: dict[str, Any]) -> str:
    """Returns the sha256 of a manifest without this entry."""
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")))

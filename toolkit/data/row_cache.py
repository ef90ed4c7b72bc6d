"""The cache of checked rows and tokens: files of `datasets` whose sha256 is verified whenever they are used."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from toolkit.api.batch import Processor
from toolkit.api.task import Task
from toolkit.base.console import warn
from toolkit.base.errors import DataError
from toolkit.base.files import disk_problem, file_sha256, write_json, written_folder

FOLDER = "toolkit"
"""Folder of the toolkit in the cache of `datasets`."""
RECORD = "sha256.json"
LOCK_SUFFIX = ".lock"


T = TypeVar("T")


def from_cache(key: str, make: Callable[[Path], T], cache_dir: str | Path | None = None) -> T:
    """Returns what `make` reads from the folder of a key, or makes there if it is missing or not as it was written."""
    import datasets
    from filelock import FileLock

    root = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / FOLDER
    folder = root / key
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}{LOCK_SUFFIX}"):  # of all runs that use this cache
            if folder.exists() and not _is_as_written(folder):
                shutil.rmtree(folder)
            rows = make(folder)
            if not (folder / RECORD).exists():
                write_json(folder / RECORD, _digests(folder))
            return rows
    except (OSError, NotImplementedError) as error:  # the latter where the file system has no locks
        name = getattr(error, "filename", None)
        if name is not None and not Path(name).is_relative_to(root):  # a file of the user
            raise
        raise _unusable(root, error) from error


def adopt(prepared: Path) -> None:
    """Copies prepared rows of a fetched folder, if it has any, into the cache, if they are not there.

    The fetched folder may be read-only, and on a slower disk. Raises DataError if the cache cannot be written.
    """
    import datasets
    from filelock import FileLock

    root = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER
    try:
        for folder in sorted(prepared.iterdir()) if prepared.is_dir() else []:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{root / folder.name}{LOCK_SUFFIX}"):
                if not (root / folder.name / RECORD).exists():
                    with written_folder(root / folder.name) as copied:
                        for file in (path for path in folder.rglob("*") if path.is_file()):
                            place = copied / file.relative_to(folder)
                            place.parent.mkdir(parents=True, exist_ok=True)
                            shutil.copyfile(file, place)  # without the permissions, which may be of a read-only folder
    except (OSError, NotImplementedError) as error:
        raise _unusable(root, error) from error


def _unusable(root: Path, error: BaseException) -> DataError:
    return DataError(
        f"cannot use the cache of prepared rows, {root}: {disk_problem(error, root) or error}. Set HF_HOME or "
        "HF_DATASETS_CACHE to a folder on another disk."
    )


def _is_as_written(folder: Path) -> bool:
    """Whether the files of a folder are complete and have not changed; says so if they have."""
    record = folder / RECORD
    if not record.exists():  # the process that wrote it was killed
        return False
    try:
        written = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        written = None
    if written == _digests(folder):
        return True
    warn(f"the cache of prepared rows in {folder} is damaged; the rows are prepared again.")
    return False


def _digests(folder: Path) -> dict[str, str]:
    """Returns the sha256 of each file of a folder, by its path inside."""
    return {
        file.relative_to(folder).as_posix(): file_sha256(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != RECORD and file.suffix != LOCK_SUFFIX
    }


DECODERS: Mapping[str, str] = {"PIL": "pillow", "pillow_heif": "pillow-heif", "soundfile": "soundfile", "av": "av"}
"""Packages that decode images and audio, by the names of their modules."""
PROGRAM = "ffmpeg"
"""The program that decodes what no package does."""


def decoders() -> dict[str, str]:
    """Returns versions of the installed decoders: rows that were bad without one are checked again with it."""
    found = {}
    for module, package in DECODERS.items():
        if find_spec(module) is not None:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "unknown"
    return found | ({PROGRAM: "found"} if shutil.which(PROGRAM) else {})


def code_fingerprint(task: Task) -> str:
    """Returns a hash of the toolkit's code and the task's file, so that an edit of either invalidates the cache."""
    return _code_fingerprint(type(task).__module__)


@lru_cache
def _code_fingerprint(module: str) -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    with suppress(OSError, TypeError):  # a task typed into an interpreter has no file
        digest.update(inspect.getsource(sys.modules[module]).encode())
    return digest.hexdigest()


def processor_fingerprint(processor: Processor) -> str:
    """Returns a hash of all files of a saved processor."""
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        digest = hashlib.sha256()
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()

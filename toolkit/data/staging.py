"""Copies of the data files of runs on a fast disk of each machine, or in its memory (`data.stage_to`).

A folder of copies belongs to one user and serves all of that user's runs on the machine. The copies of one source, in
the state that it has now, are one entry: a folder, written under another name and renamed when it is complete and
compared with the source, and a lock, which every run that reads the entry holds. Another state of the source is another
entry. Entries are made and removed by one process at a time, the one that holds the lock of the folder. They stay for
later runs until there is too little room: then those that no run holds are removed, the longest unused first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.task import Task
from toolkit.base.console import say
from toolkit.base.errors import DataError
from toolkit.base.files import expanded, naming, why, written_folder
from toolkit.config.paths import files_of
from toolkit.config.sections import DataConfig
from toolkit.data.columns import columns_in, file_columns
from toolkit.data.copies import absolute, copy_of
from toolkit.data.media.files import file_digest, files_in, paths_in
from toolkit.data.reading import Reading
from toolkit.data.sources import folder_of, read_rows
from toolkit.data.stage_room import (
    LOCK,
    SourceFiles,
    locked,
    make_room,
    remove_incomplete,
    room_problem,
    size_of,
    unused,
)
from toolkit.system.rank_order import from_local_main

if TYPE_CHECKING:
    from accelerate import Accelerator

FILES, RECORD = "files", "record.jsonl"
"""In an entry, the folder that stands for the root, and the list of its files."""
_CHUNK = 2**20


class Stage:
    """Entries that a run holds, until this object is gone: they are not removed.

    Args:
        folder: the folder of copies.
        keys: name of the entry of each source.
    """

    def __init__(self, folder: Path, keys: Mapping[str, str]) -> None:
        self.folder, self.keys, self._locks = folder, dict(keys), list[int]()
        for key in set(keys.values()):
            self._locks.append(locked(folder / f"{key}{LOCK}", shared=True, wait=True))

    def __del__(self) -> None:
        for lock in self._locks:
            os.close(lock)

    def __str__(self) -> str:
        return json.dumps(self.keys)

    def copies(self, source: str) -> Path:
        """Returns the folder with the copies of a source, which stands for the root of the file system."""
        return self.folder / self.keys[source] / FILES


def stage_files(data: DataConfig, task: Task) -> Stage:
    """Copies the data files of a run, unless there are copies of what they are now.

    Args:
        data: the YAML's `data` section, with `stage_to`.
        task: the task, which knows the columns with paths of files.

    Raises:
        DataError: if there is too little room, or a file cannot be read or written.
    """
    folder = _own_folder(data)
    sources = [source_files(source, data, task) for source in _sources(data)]
    _refuse_nesting(folder, sources)
    with _disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _disk_errors(folder), _turn(folder):
        remove_incomplete(folder)
        missing = {each.key: each for each in sources if not _is_whole(folder, each, data)}
        held = Stage(folder, {each.name: each.key for each in sources})
        make_room(folder, list(missing.values()))
        for each in missing.values():
            _copy(folder, each)
    return held


def staged(data: DataConfig, task: Task, accelerator: Accelerator) -> Stage:
    """Calls `stage_files` on the first process of each node, and returns what it made on all of them."""
    made = from_local_main(accelerator, lambda: stage_files(data, task), "stage")
    return made if isinstance(made, Stage) else Stage(expanded(data.stage_to or "").absolute(), json.loads(made))


def stage_problem(data: DataConfig, task: Task) -> str | None:
    """Returns why the data files of a run cannot be copied, or None, without copying any.

    Raises:
        DataError: as `stage_files`, for other reasons than too little room.
    """
    folder = _own_folder(data)
    sources = [source_files(source, data, task) for source in _sources(data)]
    _refuse_nesting(folder, sources)
    needed = {each.key: each for each in sources}
    with _disk_errors(folder):
        missing = [each for each in needed.values() if not (folder / each.key).exists()]
        return room_problem(folder, missing, sum(size_of(each) for each in unused(folder) if each.name not in needed))


def _sources(data: DataConfig) -> list[str]:
    return [name for name in (data.train_file, data.validation_file, data.test_file) if name]


def source_files(source: str, data: DataConfig, task: Task) -> SourceFiles:
    """Returns the files of a source: itself, all files of a folder, and the files that the rows of a table refer to.

    What is no file, does not exist or cannot be read is left to the check of the rows.

    Raises:
        DataError: if it cannot be read.
    """
    path = expanded(source)
    paths = list(files_in(path)) if path.is_dir() else [expanded(name) for name in files_of(source)]
    if not path.is_dir() and (columns := file_columns(source, task, columns_in(source, task, data.columns))):
        paths += paths_in(read_rows(source, Reading.of(data)), columns, folder_of(source))
    found = {}
    for each in paths:
        with suppress(OSError, ValueError):
            facts = each.stat()
            if each.is_file() and os.access(each, os.R_OK):
                found[str(absolute(each))] = (facts.st_size, facts.st_mtime_ns)
    return SourceFiles(source, found)


def _own_folder(data: DataConfig) -> Path:
    """Returns the folder of copies, whether it exists or not.

    Raises:
        DataError: if it belongs to somebody else.
    """
    folder = expanded(data.stage_to or "").absolute()
    with _disk_errors(folder):
        if folder.exists() and folder.stat().st_uid != os.geteuid():
            raise DataError(f"data.stage_to: {folder} belongs to another user; name a folder of your own in it.")
    return folder


def _refuse_nesting(folder: Path, sources: list[SourceFiles]) -> None:
    for each in sources:
        path = expanded(each.name)
        if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
            raise DataError(
                f"data.stage_to: {folder} is inside {each.name}, whose files it would hold; name another one."
            )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = Path(str(error.filename)) if error.filename else folder
        raise DataError(
            f"data.stage_to: the data files cannot be copied to {folder}: {place}: {why(error, place)}."
        ) from error


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Lets one process at a time change a folder of copies."""
    lock = locked(folder / LOCK, shared=False, wait=True)
    try:
        yield
    finally:
        os.close(lock)


def _is_whole(folder: Path, source: SourceFiles, data: DataConfig) -> bool:
    """Whether the copies of a source are there, and are what was copied.

    Raises:
        DataError: if they are damaged and another run reads them.
    """
    entry = folder / source.key
    if not entry.exists():
        return False
    with suppress(OSError, ValueError, KeyError, TypeError):
        lines = (entry / RECORD).read_text(encoding="utf-8").splitlines()
        if len(lines) == len(source.files) and all(_is_intact(entry, json.loads(line), data) for line in lines):
            return True
    say(f"the copies of {source.name} in {entry} are damaged, and are made again")
    try:
        os.close(locked(folder / f"{source.key}{LOCK}", shared=False, wait=False))
    except BlockingIOError:
        raise DataError(
            f"data.stage_to: the copies of {source.name} in {entry} are damaged, and another run reads them; start "
            "again when it has ended, or name another folder."
        ) from None
    shutil.rmtree(entry)
    return False


def _is_intact(entry: Path, line: dict[str, Any], data: DataConfig) -> bool:
    copy = copy_of(Path(line["path"]), entry / FILES)
    facts = copy.stat()
    if (facts.st_size, facts.st_mtime_ns) != (line["size"], line["changed"]):
        return False
    return data.fingerprint == "stat" or file_digest(copy, "content") == line["sha256"]


def _copy(folder: Path, source: SourceFiles) -> None:
    """Makes the entry of a source."""
    say(f"copying {source.name} to {folder} ({len(source.files):,} files, {source.num_bytes:,} bytes)")
    with (
        naming(folder, source.num_bytes),
        written_folder(folder / source.key) as entry,
        (entry / RECORD).open("w", encoding="utf-8") as record,
    ):
        for name, (size, changed) in source.files.items():
            copy = copy_of(Path(name), entry / FILES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            digest = _copy_file(Path(name), copy, (size, changed))
            line = {"path": name, "size": size, "changed": changed, "sha256": digest}
            record.write(json.dumps(line) + "\n")


def _copy_file(source: Path, copy: Path, state: tuple[int, int]) -> str:
    """Copies a file and its time of modification, reads the copy again, and returns its sha256.

    Raises:
        DataError: if the source changed meanwhile, or the copy is not like it.
    """
    digest = hashlib.sha256()
    with source.open("rb") as reading, copy.open("xb") as writing:
        while chunk := reading.read(_CHUNK):
            digest.update(chunk)
            writing.write(chunk)
        facts = os.fstat(reading.fileno())
    os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    if (facts.st_size, facts.st_mtime_ns) != state or copy.stat().st_size != facts.st_size:
        raise DataError(f"data.stage_to: {source} changed while it was copied; start again when it no longer does.")
    if file_digest(copy, "content") != digest.hexdigest():
        raise DataError(f"data.stage_to: the copy of {source} differs from it; is the memory or the disk damaged?")
    return digest.hexdigest()

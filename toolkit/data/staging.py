"""Copies data files to a fast disk of each machine or its memory (`data.stage_to`), and makes room for them.

A folder of copies belongs to one user and serves all of that user's runs on the machine. The copies of one source, in
the state that it has now, are one entry: a folder, written under another name and renamed when it is complete and
compared with the source, and a lock, which every run that reads the entry holds. Another state of the source is another
entry. Entries are made and removed by one process at a time, the one that holds the lock of the folder. They stay for
later runs until there is too little room: then those that no run holds are removed, the longest unused first.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.task import Task
from toolkit.base.console import say
from toolkit.base.errors import DataError
from toolkit.base.files import copy_and_hash, expanded, file_sha256, is_temporary, naming, sha256, why, written_folder
from toolkit.config.paths import files_of
from toolkit.config.sections import DataConfig
from toolkit.data.columns import columns_in, file_columns
from toolkit.data.media.files import absolute, copy_of, files_in, paths_in
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import folder_of, read_rows
from toolkit.system.limits import available_memory
from toolkit.system.rank_order import from_local_main

if TYPE_CHECKING:
    from accelerate import Accelerator


ENTRY, LOCK = "copies-", ".lock"
"""How the names of entries begin, so that nothing else in the folder is taken for one, and the suffix of locks."""
BLOCK = 4096
"""Files take up whole blocks."""
WAIT_SECONDS, POLL_SECONDS = 24 * 60 * 60, 0.2
"""How long a run waits for the copies that another one makes."""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source, by path, each with its size and time of modification (in ns)."""

    name: str
    files: Mapping[str, tuple[int, int]]

    @property
    def key(self) -> str:
        """Name of its entry."""
        return ENTRY + sha256(json.dumps(sorted(self.files.items())))[:32]

    @property
    def num_bytes(self) -> int:
        """Room that its copies take up."""
        return sum(-(-size // BLOCK) * BLOCK for size, _ in self.files.values())


def locked(path: Path, shared: bool, wait: bool) -> int:
    """Returns the descriptor of a lock; raises BlockingIOError at once or DataError after a wait if it is held."""
    import fcntl

    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    kind, deadline, waits = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, time.monotonic() + WAIT_SECONDS, False
    try:
        while True:
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                if time.monotonic() > deadline:
                    hours = WAIT_SECONDS // 3600
                    raise DataError(f"data.stage_to: another run has held {path} for {hours} hours.") from None
                if not waits:
                    say(f"waiting for another run, which copies its data files to {path.parent}")
                waits = True
                time.sleep(POLL_SECONDS)
            else:
                os.utime(lock)  # the time of its last use
                return lock
    except BaseException:
        os.close(lock)
        raise


def make_room(folder: Path, missing: Sequence[SourceFiles]) -> None:
    """Removes entries that no run holds while there is too little room; raises DataError if that is not enough."""
    for entry in unused(folder):
        if not room_problem(folder, missing):
            return
        shutil.rmtree(entry)
        (folder / f"{entry.name}{LOCK}").unlink(missing_ok=True)
    if problem := room_problem(folder, missing):
        raise DataError(problem)


def unused(folder: Path) -> list[Path]:
    """Returns the entries that no run holds, the longest unused first."""
    found = []
    for lock in folder.glob(f"{ENTRY}*{LOCK}") if folder.exists() else ():
        entry = lock.with_suffix("")
        if entry.is_dir():
            with suppress(BlockingIOError, FileNotFoundError):  # used, or just removed by another run
                used = lock.stat().st_mtime
                os.close(locked(lock, shared=False, wait=False))
                os.utime(lock, (used, used))
                found.append((used, entry))
    return [entry for _, entry in sorted(found)]


def size_of(entry: Path) -> int:
    """Returns the bytes that an entry takes up."""
    return sum(file.lstat().st_blocks * 512 for file in entry.rglob("*"))


def room_problem(folder: Path, missing: Sequence[SourceFiles], removable: int = 0) -> str | None:
    """Returns a message if there is too little room for copies, or None."""
    needed, files = sum(each.num_bytes for each in missing), sum(len(each.files) for each in missing)
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    space = os.statvfs(place)
    free = space.f_bavail * space.f_frsize
    if is_memory(place.resolve()):
        free = min(free, available_memory())
    advice = "free some, name another folder, or remove data.stage_to."
    if needed > free + removable:
        return f"data.stage_to: the copies need {needed:,} bytes, and {folder} has {free:,} bytes free; {advice}"
    if space.f_files and files > space.f_favail and not removable:
        return f"data.stage_to: there are {files:,} files, and {folder} has room for {space.f_favail:,} more; {advice}"
    return None


def is_memory(folder: Path) -> bool:
    """Whether a folder's files are in memory, of which this process may use less than the file system has."""
    import psutil

    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    mount = next((each for each in (folder, *folder.parents) if each in mounts), None)
    return mounts.get(mount, "") in ("tmpfs", "ramfs") if mount else False


FILES, RECORD = "files", "record.jsonl"
"""In an entry, the folder that stands for the root, and the list of its files."""


class Stage:
    """The entries (by source) of a folder of copies that a run holds until this object is gone; none is removed."""

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
    """Copies the data files of a run to `data.stage_to`, unless there are copies of their present state."""
    folder, sources = _places(data, task)
    with _disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _disk_errors(folder), _turn(folder):
        for entry in filter(is_temporary, folder.glob(f".{ENTRY}*")):  # of killed processes
            shutil.rmtree(entry)
        missing = {each.key: each for each in sources if not _is_whole(folder, each, data)}
        held = Stage(folder, {each.name: each.key for each in sources})
        make_room(folder, list(missing.values()))
        for each in missing.values():
            copy_data(folder, each)
    return held


def staged(data: DataConfig, task: Task, accelerator: Accelerator) -> Stage:
    """Calls `stage_files` on the first process of each node, and returns what it made on all of them."""
    made = from_local_main(accelerator, lambda: stage_files(data, task), "stage")
    return made if isinstance(made, Stage) else Stage(expanded(data.stage_to or "").absolute(), json.loads(made))


def stage_problem(data: DataConfig, task: Task) -> str | None:
    """Returns why the data files of a run cannot be copied, or None; copies none.

    Raises DataError as `stage_files`, for other reasons than too little room.
    """
    folder, sources = _places(data, task)
    needed = {each.key: each for each in sources}
    with _disk_errors(folder):
        missing = [each for each in needed.values() if not (folder / each.key).exists()]
        return room_problem(folder, missing, sum(size_of(each) for each in unused(folder) if each.name not in needed))


def source_files(source: str, data: DataConfig, task: Task) -> SourceFiles:
    """Returns the files of a source and those that its rows refer to; paths that cannot be read are left out."""
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


def _places(data: DataConfig, task: Task) -> tuple[Path, list[SourceFiles]]:
    """Returns the folder of copies, which need not exist, and what to copy.

    Raises DataError if another user owns the folder, or if it is inside a source.
    """
    folder = expanded(data.stage_to or "").absolute()
    with _disk_errors(folder):
        if folder.exists() and folder.stat().st_uid != os.geteuid():
            raise DataError(f"data.stage_to: {folder} belongs to another user; name a folder of your own in it.")
    sources = [source_files(source, data, task) for source in data.files()]
    for each in sources:
        path = expanded(each.name)
        if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
            raise DataError(
                f"data.stage_to: {folder} is inside {each.name}, whose files it would hold; name another one."
            )
    return folder, sources


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
    """Whether the copies of a source are complete and unchanged; raises DataError if another run reads damaged ones."""
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
    return data.fingerprint == "stat" or file_sha256(copy) == line["sha256"]


def copy_data(folder: Path, source: SourceFiles) -> None:
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
    """Copies a file and its time of modification, and returns its sha256; raises DataError if the copy differs."""
    digest = copy_and_hash(source, copy)
    facts = source.stat()
    os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    if (facts.st_size, facts.st_mtime_ns) != state or copy.stat().st_size != facts.st_size:
        raise DataError(f"data.stage_to: {source} changed while it was copied; start again when it is complete.")
    if file_sha256(copy) != digest:
        raise DataError(f"data.stage_to: the copy of {source} differs from it; is the memory or the disk damaged?")
    return digest

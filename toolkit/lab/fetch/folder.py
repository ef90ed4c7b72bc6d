"""Writes a fetched folder: copies what is missing or damaged, and the manifest at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.base.files import is_temporary, kind_of, remove_leftovers, temporary_file, write_json
from toolkit.base.offline import FORMAT, MANIFEST, PREPARED, Entry, Fetched, Source, read_fetched, sha256_of
from toolkit.base.run_folder import RunFolder

MODEL_FOLDER, DATASET_FOLDER, FILES_FOLDER = "model", "dataset", "files"
_BYTES = 2**22
"""Bytes that are copied at a time."""


class Target:
    """A fetched folder that is being written.

    Args:
        folder: the folder; it exists and is locked.

    Raises:
        InputError: if it holds anything that `toolkit fetch` did not write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, Source] = {}
        self.files: dict[str, Entry] = {}
        self.written: list[str] = []
        """Files that were not there, or not as they must be."""
        files = RunFolder(folder)
        own = {MANIFEST, MODEL_FOLDER, DATASET_FOLDER, FILES_FOLDER, PREPARED, files.lock.name, files.lock_owner.name}
        own.add(files.lock_removal.name)
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in own and not is_temporary(entry))
        if foreign:
            raise InputError(
                f"--to: {folder} holds {', '.join(foreign[:5])}, which is not of `toolkit fetch`; use another folder"
            )
        remove_leftovers(folder)
        self.former = self._former()
        self.damaged = dict(self.former.damage())
        """What was wrong with files that the manifest has, by their names."""

    def _former(self) -> Fetched:
        nothing = Fetched(self.folder, {}, {})
        if kind_of(self.folder / MANIFEST) != "file":
            return nothing
        try:
            return read_fetched(self.folder)
        except InputError:  # of another version
            return nothing

    def has(self, key: str, source: Source) -> bool:
        """Keeps what the folder already has of a setting, if all of its files are as they were written.

        Args:
            key: dotted key of the setting.
            source: what the folder is to have; without a commit, that of the folder counts, if the revision is equal.
        """
        former = self.former.sources.get(key)
        if former is None or (former.value, former.config) != (source.value, source.config):
            return False
        same = former.commit == source.commit if source.commit else former.revision == source.revision
        names = [name for name in self.former.files if Path(name).is_relative_to(former.path)]
        if former.commit is None or not same or any(name in self.damaged for name in names):
            return False
        self.sources[key] = Source(former.value, former.path, source.revision, former.config, former.commit)
        self.files |= {name: self.former.files[name] for name in names}
        return True

    def copy(self, source: Path, name: str) -> None:
        """Copies a file, unless the folder has it.

        Args:
            source: the file.
            name: its path in the folder.

        Raises:
            OSError: if it cannot be read or written.
        """
        place = self.folder / name
        digest = sha256_of(source)
        size = source.stat().st_size
        if kind_of(place) != "file" or place.stat().st_size != size or sha256_of(place) != digest:
            self.change(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            with temporary_file(place) as temporary, source.open("rb") as opened, temporary.open("wb") as copied:
                written = hashlib.sha256()
                while block := opened.read(_BYTES):
                    written.update(block)
                    copied.write(block)
            if written.hexdigest() != digest:
                raise InputError(f"{source} changed while it was copied; repeat the command")
        self.files[name] = Entry(size, digest)

    def add_folder(self, name: str) -> None:
        """Adds all files of a folder that has just been written."""
        place = self.folder / name
        for file in sorted(path for path in place.rglob("*") if path.is_file()):
            inside = file.relative_to(self.folder).as_posix()
            self.files[inside] = Entry(file.stat().st_size, sha256_of(file))
            if self.former.files.get(inside) != self.files[inside] or inside in self.damaged:
                self.change(inside)

    def keep_prepared(self) -> None:
        """Keeps the prepared rows that are as they were written; others with the same key are prepared again."""
        keys = {_key(name) for name in self.former.files} - {_key(name) for name in self.damaged} - {""}
        self.files |= {name: entry for name, entry in self.former.files.items() if _key(name) in keys}

    def change(self, name: str) -> None:
        """Notes that a file or folder is written; until `finish`, the folder counts as incomplete."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        if name not in self.written:
            self.written.append(name)

    def finish(self) -> Fetched:
        """Removes what the folder no longer has, and writes the manifest."""
        unknown = [path for path in self._all() if path not in self.files]
        for name in unknown:
            self.change(name)
            (self.folder / name).unlink()
        self.written = [name for name in self.written if name in self.files]
        _remove_empty(self.folder)
        write_json(self.folder / MANIFEST, _manifest(self.sources, self.files))
        return Fetched(self.folder, self.sources, self.files)

    def _all(self) -> Iterable[str]:
        for top in (MODEL_FOLDER, DATASET_FOLDER, FILES_FOLDER, PREPARED):
            for path in (self.folder / top).rglob("*"):
                if path.is_file() or path.is_symlink():
                    yield path.relative_to(self.folder).as_posix()


def _key(name: str) -> str:
    """Returns the name of the folder of prepared rows that a file is in, or an empty text."""
    top, _, rest = name.partition("/")
    return rest.partition("/")[0] if top == PREPARED else ""


def _manifest(sources: Mapping[str, Source], files: Mapping[str, Entry]) -> dict[str, object]:
    return {
        "format": FORMAT,
        "sources": {key: asdict(source) for key, source in sources.items()},
        "files": {name: asdict(files[name]) for name in sorted(files)},
    }


def _remove_empty(folder: Path) -> None:
    for place in sorted(folder.rglob("*"), reverse=True):  # what is in a folder comes before it
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()

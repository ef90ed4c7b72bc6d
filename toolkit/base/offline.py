"""Offline use: the folder of `toolkit fetch`, and whether the network may be used.

`fetched.json` says what each setting stands for, from which commit of the Hub it is, and the sha256 of every file. It
is written last, so a folder without it is not complete.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from toolkit.base.console import say
from toolkit.base.errors import InputError
from toolkit.base.files import expanded, file_sha256, kind_of, read_json

MANIFEST = "fetched.json"
FORMAT = 1
"""Version of the manifest."""
MODEL, DATASET = "model.name_or_path", "data.dataset_name"
DATA_FILES = ("data.train_file", "data.validation_file", "data.test_file")
PREPARED = "prepared"
"""Subfolder of the prepared rows, in the layout of the cache."""
_SHOWN = 5
"""Most damaged files that a message names."""


@dataclass(frozen=True)
class Source:
    """What a setting names, and where the folder has it."""

    value: str  # the value of the setting
    path: str  # the file or folder, relative to the fetched folder
    revision: str | None = None  # the revision in the settings, or None
    config: str | None = None  # configuration of a dataset, or None
    commit: str | None = None  # the commit of the Hub; None for what was copied from this machine


@dataclass(frozen=True)
class Entry:
    """Size in bytes and sha256, in hexadecimal, of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """A fetched folder."""

    folder: Path  # the folder, absolute
    sources: Mapping[str, Source]  # what it has, by dotted key of the setting; `data.train_file[1]` in a list
    files: Mapping[str, Entry]  # every file by its path inside

    def find(self, key: str, value: str, revision: str | None = None, config: str | None = None) -> Path | None:
        """Returns where the folder has the value of a setting; None if it has something else, or nothing."""
        for name, source in self.sources.items():
            same = (expanded(source.value), source.config) == (expanded(value), config)
            if name.partition("[")[0] == key and same and revision in (source.revision, source.commit):
                return self.folder / source.path
        return None

    def damage(self, content: bool = True) -> Iterator[tuple[str, str]]:
        """Yields each file that is missing or changed, with the reason; without `content`, only sizes count."""
        for name, entry in self.files.items():
            if reason := _difference(self.folder / name, entry, content):
                yield name, reason

    def require_intact(self, content: bool = True) -> None:
        """Raises InputError if a file is missing or not as it was written; names the first ones."""
        if damaged := [f"{name} {reason}" for name, reason in self.damage(content)]:
            more = f" and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
            raise InputError(
                f"offline_dir: {self.folder} is damaged: {'; '.join(damaged[:_SHOWN])}{more}; repeat `toolkit fetch`, "
                "which replaces what is damaged"
            )


def _difference(file: Path, entry: Entry, content: bool) -> str:
    try:
        if file.stat().st_size != entry.bytes:
            return f"has {file.stat().st_size:,} bytes instead of {entry.bytes:,}"
        return "" if not content or file_sha256(file) == entry.sha256 else "has another sha256 than when it was written"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def read_fetched(folder: str | Path) -> Fetched:
    """Reads the manifest of a fetched folder.

    Raises InputError if the folder does not exist, is not complete or was not written by `toolkit fetch`.
    """
    path = expanded(folder).absolute()
    file = path / MANIFEST
    if kind_of(path) != "folder":
        raise InputError(f"offline_dir: received {str(folder)!r}, there is no such folder (tried {path})")
    if kind_of(file) != "file":
        raise InputError(f"offline_dir: {path} has no {MANIFEST}; it is no folder of `toolkit fetch`, or not complete")
    try:
        found = read_json(file)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}")
        sources = {str(key): Source(**value) for key, value in found["sources"].items()}
        files = {str(name): Entry(**value) for name, value in found["files"].items()}
        for name in [*files, *(source.path for source in sources.values())]:
            if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"the path {name!r}")
        return Fetched(path, sources, files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"offline_dir: {file} is not a manifest that this version can read ({error}); repeat `toolkit fetch`"
        ) from error


SECONDS = 5.0
"""How long a connection may take to be opened."""


def prepare_download(name: str) -> None:
    """Makes Hugging Face's libraries use only their caches for a Hub id, in this process, if the Hub cannot be reached.

    They would retry each file for half a minute. Nothing is done for a local folder.
    """
    if kind_of(expanded(name)) != "folder":
        go_offline_without_network()


@cache
def go_offline_without_network() -> None:
    """Restricts this process to its caches if the Hub cannot be reached; asks once."""
    from huggingface_hub import constants

    if constants.is_offline_mode() or getproxies():  # a proxy may reach what this machine cannot
        return
    hub = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((hub.hostname, hub.port or (443 if hub.scheme == "https" else 80)), SECONDS).close()
    except OSError as error:
        say(f"{hub.hostname} cannot be reached ({error}); only the local cache is used")
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True

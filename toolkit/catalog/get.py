"""`toolkit data get`: downloads, converts and checks a dataset, and records its sources in `SOURCE.json`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from toolkit.base.errors import InputError, ToolkitError
from toolkit.base.files import file_sha256, write_json
from toolkit.base.version import __version__
from toolkit.catalog.entries import CATALOG, CatalogEntry

TIMEOUT_SECONDS = 30.0
"""How long a server may take to respond."""
MAX_BYTES = 2**29
"""Largest download, above that of every dataset."""
_CHUNK = 2**16
_ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error)


class DownloadError(ToolkitError):
    """A dataset cannot be downloaded, or is not as expected: exit code 1."""


def download(url: str, path: Path, timeout: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> None:
    """Downloads a file under a temporary name, and renames it when it is complete and on the disk.

    Raises DownloadError if the download fails, is incomplete or too large, or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        size = _copy(url, temporary, timeout, max_bytes)
        if size > max_bytes:
            raise DownloadError(f"{url} is larger than {max_bytes:,} bytes, which is not the file that was expected")
        temporary.replace(path)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: a redirect to an invalid address
        raise DownloadError(f"cannot download {url}: {_reason(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _copy(url: str, path: Path, timeout: float, max_bytes: int) -> int:
    """Writes at most one chunk more than `max_bytes`; returns the number of bytes written."""
    size = 0
    request = Request(url, headers={"User-Agent": "finetune-toolkit"})
    with urlopen(request, timeout=timeout) as answer, path.open("wb") as file:
        while size <= max_bytes and (chunk := answer.read(_CHUNK)):
            file.write(chunk)
            size += len(chunk)
        announced = answer.headers.get("Content-Length")
        if size <= max_bytes and announced is not None and size != int(announced):
            raise ConnectionError(f"the connection ended after {size:,} of {int(announced):,} bytes")
        file.flush()
        os.fsync(file.fileno())
    return size


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", None)  # of a URLError: what happened below
    return str(inner if inner else error) or type(error).__name__


def copy_from_mirror(mirror: Path, file: str, path: Path) -> None:
    """Copies a file of a folder of sources that were downloaded by hand."""
    try:
        shutil.copyfile(mirror / file, path)
    except OSError as error:
        raise DownloadError(f"--from: cannot read {(mirror / file).absolute()}: {error.strerror}") from error


def digest(path: Path) -> str:
    """Returns the sha256 of a file, or of the names and contents of a folder's files (of PNG images, their pixels)."""
    if path.is_file():
        return file_sha256(path)
    total = hashlib.sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        content = _pixels_sha256(file) if file.suffix == ".png" else file_sha256(file)
        total.update(f"{content}  {file.relative_to(path).as_posix()}\n".encode())
    return total.hexdigest()


def _pixels_sha256(path: Path) -> str:
    from PIL import Image

    with Image.open(path) as image:
        return hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).hexdigest()


NOTE = "SOURCE.json"
"""Records the sources of a dataset and the checksum of each file, which reveal damaged files."""


def get_dataset(
    name: str, output_dir: Path, mirror: Path | None = None, say: Callable[[str], None] = lambda line: None
) -> Path:
    """Creates the folder of a dataset, or restores its missing files; a complete folder is left as it is.

    Args:
        name: name of a dataset in the catalog.
        output_dir: parent of the dataset's folder.
        mirror: folder with the source files, downloaded by hand; None downloads them.
        say: called with each line of progress.

    Returns:
        The dataset's folder.

    Raises:
        DownloadError: if a source file cannot be downloaded or is not as expected, or files cannot be written.
        InputError: if the folder exists but is not this dataset, or some of its files have changed.
    """
    entry, folder = CATALOG[name], output_dir / name
    missing: list[str] = []
    if folder.exists():
        missing = _missing_files(entry, folder)
        if not missing:
            say(f"{folder} is already complete; nothing to do.")
            return folder
        say(f"{folder}: {len(missing)} of its files are missing, for instance {missing[0]}.")
    say(f"{name}: {entry.summary}\n  licence: {entry.licence}\n  homepage: {entry.homepage}")
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=output_dir) as temporary:
            made = _make(name, entry, Path(temporary), mirror, say)
            if missing:
                _restore(made, folder, missing)
            else:
                made.rename(folder)
    except OSError as error:
        raise DownloadError(f"{folder.absolute()} cannot be written: {error.strerror or error}") from error
    say(f"{folder} is complete; its {NOTE} lists the sources.")
    return folder


def _missing_files(entry: CatalogEntry, folder: Path) -> list[str]:
    """Returns the missing files of a dataset's folder; another folder, or changed files, are an InputError."""
    noted = _noted_files(entry, folder / NOTE)
    if noted is None:
        if all((folder / part).exists() and digest(folder / part) == entry.sha256[part] for part in entry.sha256):
            return []
        raise InputError(
            f"{folder.absolute()} exists, but its {NOTE} is missing, unreadable or of an earlier version, and its "
            "files are not the expected ones. Nothing was changed. Move the folder away and run the command again."
        )
    changed = [file for file in noted if (folder / file).is_file() and file_sha256(folder / file) != noted[file]]
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise InputError(
            f"{folder.absolute()}: the content of {', '.join(changed[:5])}{more} has changed since the download. "
            "Delete the changed files and run the command again; it restores missing files."
        )
    return [file for file in noted if not (folder / file).is_file()]


def _noted_files(entry: CatalogEntry, note: Path) -> dict[str, str] | None:
    """Returns the recorded checksum of each file of a dataset, or None if there are none, or others were recorded."""
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        files = {str(file): str(sha256) for file, sha256 in noted["files"].items()}
        return files if noted["summary"] == entry.summary else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _make(name: str, entry: CatalogEntry, workplace: Path, mirror: Path | None, say: Callable[[str], None]) -> Path:
    """Downloads, converts and checks a dataset; returns its folder."""
    raw, made = workplace / "raw", workplace / "made"
    raw.mkdir()
    made.mkdir()
    sources = []
    for source in entry.sources:
        if mirror is not None:
            copy_from_mirror(mirror, source.file, raw / source.file)
        else:
            _download(name, entry, source.url, raw / source.file)
        path = raw / source.file
        sources.append({"url": source.url, "bytes": path.stat().st_size, "sha256": file_sha256(path)})
        say(f"  {source.url}\n    {sources[-1]['bytes']:,} bytes, sha256 {sources[-1]['sha256']}")
    _convert(name, entry, raw, made)
    known = {part: made / part if (made / part).exists() else raw / part for part in entry.sha256}
    if different := [part for part, path in known.items() if digest(path) != entry.sha256[part]]:
        say(f"  The source has changed: {', '.join(different)} differs from the data that this toolkit knows.")
    files = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
    note: dict[str, Any] = {
        "dataset": name,
        "summary": entry.summary,
        "licence": entry.licence,
        "homepage": entry.homepage,
        "sources": sources,
        "from_mirror": mirror is not None,
        "as_measured": not different,
        "toolkit": __version__,
        "files": {file: file_sha256(made / file) for file in files},
    }
    write_json(made / NOTE, note)
    return made


def _download(name: str, entry: CatalogEntry, url: str, path: Path) -> None:
    try:
        download(url, path)
    except DownloadError as error:
        files = "\n".join(f"    {source.url}  as  {source.file}" for source in entry.sources)
        raise DownloadError(
            f"{name}: {error}.\n  Without a network, download these files elsewhere into one folder and run "
            f"`toolkit data get {name} --from FOLDER`:\n{files}"
        ) from error


def _convert(name: str, entry: CatalogEntry, raw: Path, made: Path) -> None:
    try:
        entry.convert(raw, made)
    except (ValueError, LookupError, TypeError, EOFError, RuntimeError, OSError, *_ARCHIVE_ERRORS) as error:
        files = ", ".join(source.file for source in entry.sources)
        raise DownloadError(
            f"{name}: the source ({files}) is damaged, or its format has changed: {type(error).__name__}: {error}"
        ) from error


def _restore(made: Path, folder: Path, missing: list[str]) -> None:
    """Moves missing files into a dataset's folder; files that differ from the recorded ones are a DownloadError."""
    noted, now = (json.loads((place / NOTE).read_text(encoding="utf-8")) for place in (folder, made))
    if different := [file for file in missing if now["files"].get(file) != noted["files"][file]]:
        changed = [new["url"] for new in now["sources"] if new not in noted["sources"]] or ["the conversion"]
        raise DownloadError(
            f"{folder.absolute()}: {different[0]} differs from the checksum in {NOTE}, because {', '.join(changed)} "
            "has changed. Move the folder away and run the command again to get the current version of all files."
        )
    for file in missing:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (made / file).replace(folder / file)

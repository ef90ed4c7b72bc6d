"""Image and audio files: folders and archives of classes, columns of paths, and bytes in tables.

A row refers to its file as `{"path", "bytes", "name"}`: the file's path, or its part of an archive, or None; its
content if the table holds it (as datasets of the hub do) or None; and its name in messages and predictions.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.api.batch import BadRow
from toolkit.base.errors import DataError
from toolkit.base.files import file_sha256, kind_of, sha256
from toolkit.config.paths import ARCHIVES
from toolkit.data.media.archives import Part, is_hidden, is_note, members, part_of, reopen
from toolkit.data.media.transcripts import FOLDERS, TEXT, Entry, Transcripts, read_transcripts, transcript_files
from toolkit.data.readers.raw import RECOGNISED, Fingerprint, RawRow, Reading


def place_of(path: Path, copies: Path | None) -> Path:
    """Returns where a file is read: its copy if it has one below `copies`, a folder that stands for the root."""
    if copies is None:
        return path
    copy = copy_of(path, copies)
    return copy if copy.exists() else path


def copy_of(path: Path, copies: Path) -> Path:
    """Returns the place of a file's copy. Different files have different ones; two links to a file may have two."""
    path = absolute(path)
    return copies / path.relative_to(path.anchor)


def absolute(path: Path) -> Path:
    """Returns the absolute path of a file without `..`."""
    path = path.absolute()
    if ".." not in path.parts:
        return path
    return Path(os.path.realpath(path.parent), path.name)  # behind a link, `..` is not the parent of the link


def with_former_names(text: str, copies: Path | None) -> str:
    """Returns a text in which copies are named as the files that the user named."""
    return text if copies is None else text.replace(f"{copies}{os.sep}", os.sep)


@contextmanager
def named_as_before(copies: Path | None) -> Iterator[None]:
    """Applies `with_former_names` to the DataErrors of the block."""
    try:
        yield
    except DataError as error:
        if (text := with_former_names(str(error), copies)) == str(error):
            raise
        raise DataError(text) from error


_OF_THE_MACHINE = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "ENOMEM", "EMFILE", "ENFILE", "EAGAIN", "EINTR", "ENOSPC", "EDQUOT", "ENOBUFS"),
        *("ESTALE", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "ECONNRESET", "ECONNABORTED", "EHOSTDOWN", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)  # some systems lack some of them
)


def raise_unless_file(name: str, error: BaseException) -> None:
    """Raises DataError if a file could not be read for a reason outside the file; otherwise does nothing.

    Bad rows are cached, and would stay bad when the machine can read the file again.
    """
    if isinstance(error, MemoryError):
        raise DataError(
            f"{name}: there was not enough memory to read it. Free some memory, for instance with fewer processes on "
            "this machine, and start again."
        ) from error
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        raise DataError(
            f"{name} could not be read: {error.strerror}. This is a failure of the machine or its disk, and the file "
            "may be intact: start again; if the error stays, check the disk and the limit on open files (ulimit -n)."
        ) from error


SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif"),
    "audio": (".wav", ".flac", ".ogg", ".mp3", ".opus", ".m4a", ".aac", ".wma"),
}
"""Suffixes of image and audio files, by the column for these files."""
COLUMN_OF = {suffix: column for column, suffixes in SUFFIXES.items() for suffix in suffixes}
"""Column by suffix."""
_EMPTY = "{}: the file is empty (0 bytes)"
SHOWN_CHARS = 80
"""Characters of a long file name in messages."""


def read_folder(folder: Path, labelled: bool = True, reading: Reading = RECOGNISED) -> Iterator[RawRow]:
    """Streams the image and audio files of a folder in the order of their names, as `image` or `audio` and `label`.

    Labelled files are in `<class>/<file>` and deeper, or have transcripts beside them (`text`, see
    `toolkit.data.media.transcripts`), or DataError is raised; others are anywhere. Hidden files, system files and notes
    (.txt, .md) are skipped; a file with any other suffix is a bad row.
    """
    names = file_names(folder)
    found = read_transcripts(names, _recordings(names), lambda name: (folder / name).read_bytes(), reading.encoding)
    if labelled and not found and not any(entry.is_dir() and not is_hidden(entry.name) for entry in folder.iterdir()):
        raise DataError(
            f"{folder} has no folders of classes; expected {folder}/<class>/<file>, recordings with their transcripts "
            "(a.wav and a.txt), or a table (.csv, .jsonl and so on) with the paths of the files."
        )
    return _rows(dict.fromkeys(names), found, labelled)


def is_archive(path: Path) -> bool:
    """Whether a path is that of an archive of image and audio files."""
    return path.suffix.lower() in ARCHIVES and path.is_file()


def read_archive(archive: Path, labelled: bool = True, reading: Reading = RECOGNISED) -> Iterator[RawRow]:
    """Streams the image and audio files of an archive as `read_folder`; raises DataError also if it is damaged."""
    reopen(archive)
    reasons = {name: each.reason for name, each in members(archive).items() if not any(map(is_hidden, name.split("/")))}
    names, place = list(reasons), archive.absolute()
    found = read_transcripts(names, _recordings(names), lambda name: part_of(place, name).read(), reading.encoding)
    if labelled and not found and not any("/" in name for name in names if not is_note(name)):
        raise DataError(
            f"{archive} has no folders of classes; expected the names of its files to be <class>/<file>, or recordings "
            "with their transcripts (a.wav and a.txt)."
        )
    yield from _rows(reasons, found, labelled)


def read_files(paths: Iterable[Path]) -> Iterator[RawRow]:
    """Streams image and audio files without labels, numbered from 1, with absolute paths if the given ones are."""
    numbers = count(1)
    for path in paths:
        rows = read_folder(path, labelled=False) if path.is_dir() else _rows({path.name: None}, {}, labelled=False)
        folder = path if path.is_dir() else path.parent
        for _, values, reason in rows:
            files = {name: str(folder / value) for name, value in (values or {}).items() if name in (*SUFFIXES, "file")}
            yield RawRow(next(numbers), (values or {}) | files, reason)


def folder_note(folder: Path, reading: Reading) -> str | None:
    """Returns how many text files (.txt, .md) of a folder are skipped, or None if there are none."""
    names = file_names(folder)
    read = transcript_files(names, _recordings(names))
    skipped = [name for name in names if is_note(name) and name not in read]
    if not skipped:
        return None
    files = "1 text file is" if len(skipped) == 1 else f"{len(skipped)} text files are"
    return f"{files} skipped ({skipped[0]})"


def _recordings(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the recordings among files, by their paths without suffix."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        suffix = Path(name).suffix
        if COLUMN_OF.get(suffix.lower()) == "audio":
            found[name.removesuffix(suffix)].append(name)
    return found


def _rows(names: Mapping[str, str | None], transcripts: Transcripts, labelled: bool) -> Iterator[RawRow]:
    """Yields the rows of the files of a folder or an archive; `names` have the reasons why files cannot be read."""
    read = set(transcript_files([*names], _recordings(names)))
    files = {name for name in names if not is_note(name)} - read
    entries = [entry for each in transcripts.values() for entry in each if TEXT in entry.values]
    other = Entry({TEXT: None}, classed=any(entry.classed for entry in entries)) if entries else Entry({}, classed=True)
    numbers = count(1)
    for name in sorted(files | transcripts.keys()):
        for entry in transcripts.get(name, (other,)):
            row = _row(next(numbers), name, labelled, entry)
            yield row._replace(reason=f"{name}: {names[name]}") if names.get(name) else row


def _row(number: int, name: str, labelled: bool, entry: Entry) -> RawRow:
    column = COLUMN_OF.get(Path(name).suffix.lower())
    values = {column or "file": name, **entry.values}
    if entry.reason or column is None:
        unknown = f"unsupported file type {Path(name).suffix!r}"
        alone = "a transcript without a recording" if entry.values.get(TEXT) else unknown
        return RawRow(number, values, entry.reason or f"{name}: {alone}")
    *parents, _ = Path(name).parts
    if labelled and entry.classed and parents:
        return RawRow(number, {column: name, "label": parents[0], **entry.values})
    usable = not labelled or any(values.get(each) is not None for each in (TEXT, "label"))
    reason = f"{name}: has no transcript" if TEXT in values else f"{name} is not in the folder of a class"
    return RawRow(number, values, None if usable else reason)


def folder_digest(folder: Path, how: Fingerprint = "content") -> str:
    """Returns the sha256, in hexadecimal, of the names of a folder's files, and of the transcripts among them."""
    names = file_names(folder)
    texts = [file_digest(folder / name, how) for name in transcript_files(names, _recordings(names))]
    return sha256("\0".join([*names, *texts]).encode("utf-8", "surrogateescape"))


def files_in(folder: Path) -> Iterator[Path]:
    """Yields the paths of all files of a folder that are not hidden or of the system."""
    return (folder / name for name in file_names(folder))


def file_names(folder: Path) -> list[str]:
    """Returns the sorted paths of all files below a folder except hidden and system files; links are followed."""
    names: list[str] = []
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        here = Path(place)
        # A link to one of its parent folders would never end.
        folders[:] = [name for name in folders if not is_hidden(name) and not (
            (here / name).is_symlink() and here.resolve().is_relative_to((here / name).resolve()))]  # fmt: skip
        names += [(here / name).relative_to(folder).as_posix() for name in files if not is_hidden(name)]
    return sorted(names)


def _raise(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be opened: {error.strerror}.") from error


def content_digest(
    key: str,
    rows: Iterable[RawRow],
    columns: Iterable[str],
    folder: Path,
    copies: Path | None = None,
    how: Fingerprint = "content",
) -> str:
    """Returns the sha256, in hexadecimal, of a table with the digest `key` and the files in columns of its rows.

    `folder` and `copies` are as for `reference`; `how` is `data.fingerprint`. Raises DataError if the machine could not
    read a file just now.
    """
    digest = hashlib.sha256(key.encode())
    for path in paths_in(rows, columns, folder):
        try:
            place = path if how == "stat" else place_of(path, copies)
            if not place.is_file():  # missing, or something that may never end: a pipe or a device
                raise FileNotFoundError
            digest.update(bytes.fromhex(file_digest(place, how)))
        except (OSError, ValueError) as error:  # the latter for a name that no file can have: a bad row till it changes
            raise_unless_file(str(path), error)
            digest.update(b"missing")
    return digest.hexdigest()


def paths_in(rows: Iterable[RawRow], columns: Iterable[str], folder: Path) -> Iterator[Path]:
    """Yields the absolute paths of the files that rows refer to; arguments are those of `content_digest`."""
    columns = list(columns)
    for row in rows:
        for column in columns:
            if (path := _path((row.values or {}).get(column), folder)) is not None:
                yield path


def file_digest(path: Path, how: Fingerprint) -> str:
    """Returns the sha256, in hexadecimal, of a file's bytes (`content`), or of its path, size and time (`stat`)."""
    if how == "stat":
        facts = path.stat()
        return sha256(f"{path.absolute()}:{facts.st_size}:{facts.st_mtime_ns}".encode(errors="surrogateescape"))
    return file_sha256(path)


def reference(value: Any, folder: Path, number: int, copies: Path | None = None) -> dict[str, Any]:
    """Returns the reference to a row's file, with the keys `path`, `bytes` and `name`.

    Args:
        value: a path, or the value that `datasets` stores for an image or audio.
        folder: the folder that relative paths start from, or the archive that contains the files.
        number: number of the row, for the name of a file that has none.
        copies: a folder that stands for the root of the file system: files that are below it are read there.

    Raises:
        BadRow: if the value is neither, or there is no such file that can be opened.
        DataError: if the machine could not open it just now.
    """
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return {"path": None, "bytes": value["bytes"], "name": value.get("path") or f"row {number}"}
    if isinstance(value, str) and is_archive(folder):
        return {"path": _part_path(value, folder), "bytes": None, "name": value}
    path = _path(value, folder)
    if path is None:
        raise BadRow(f"{value!r} is not the path of a file")
    name = value["path"] if isinstance(value, Mapping) else value
    try:
        place = place_of(path, copies)
        found = place.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a name that no file can have
        raise BadRow(f"there is no file {name} (tried {path})") from None
    except OSError as error:  # for instance a text instead of a path, which is too long for one
        raise_unless_file(_shown(name), error)
        raise BadRow(f"{_shown(name)} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise BadRow(f"{name} is not a file, but {'a folder' if stat.S_ISDIR(found.st_mode) else 'a pipe or a device'}")
    if not found.st_size:
        raise BadRow(_EMPTY.format(name))
    return {"path": str(place), "bytes": None, "name": name}


def _part_path(name: str, archive: Path) -> str:
    try:
        part = part_of(archive, name)
    except KeyError:
        raise BadRow(f"there is no file {name} in {archive}") from None
    except (ValueError, OSError) as error:
        raise_unless_file(name, error)
        raise BadRow(f"{name}: {error}") from error
    if not (part.size if part.unpacked is None else part.unpacked):
        raise BadRow(_EMPTY.format(name))
    return str(part)


def _shown(name: str) -> str:
    return name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}…"


def open_file(file: Mapping[str, Any]) -> BinaryIO:
    """Opens a row's file for reading; raises OSError if that fails, for instance because it no longer exists."""
    if file["bytes"] is not None:
        return io.BytesIO(file["bytes"])
    part = Part.of(file["path"])
    return Path(file["path"]).open("rb") if part is None else io.BytesIO(part.read())


def _path(value: Any, folder: Path) -> Path | None:
    name = value.get("path") if isinstance(value, Mapping) else value
    if not isinstance(name, str) or not name.strip():
        return None
    place = folder / name
    others = () if os.sep in name else [folder / each / name for each in FOLDERS if (folder / each).is_dir()]
    if others and not kind_of(place):
        place = next(filter(kind_of, others), place)
    return place.absolute()

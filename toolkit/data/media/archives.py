"""Files inside .tar and .zip archives, read by their offset: nothing is extracted, and a process opens an archive once.

An archive may come from anywhere. Its files are found by the list of their names, which lead nowhere else; anything
but a plain file of moderate size has a reason instead, and no file is unpacked beyond its listed size.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toolkit.base.errors import DataError
from toolkit.base.files import cached_while_unchanged
from toolkit.config.paths import ARCHIVES
from toolkit.data.readers.raw import not_text

_SYSTEM = ("@eadir", "__macosx", "desktop.ini", "ehthumbs.db", "thumbs.db")
"""Files and folders of Windows, macOS and network drives, in lower case."""
_NOTES = (".md", ".txt")
ABOUT = ("changelog", "citation", "copying", "licence", "license", "notes", "readme")
"""Names of texts about a dataset, in lower case and without suffix."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name, without its parents, is hidden or of the system."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _SYSTEM


def is_note(name: str) -> bool:
    """Whether a file is a note beside the data, such as a licence."""
    return name.lower().endswith(_NOTES) or name.lower().rpartition("/")[2] in ABOUT


def is_skipped(path: str) -> bool:
    """Whether a file of this path, inside its folder or archive, is hidden, of the system, or a note."""
    return is_note(path) or any(map(is_hidden, path.split("/")))


MOST_BYTES = 2**30
"""Largest size of a file in an archive."""
MOST_OPEN = 16
"""Archives that a process keeps open."""
_BLOCK = 512
"""Bytes of a header of a tar archive; a block of zeros ends the archive."""
_CHUNK = 2**20
_LOCAL = struct.Struct("<4s22xHH")
"""What precedes a file in a zip archive: a signature, and the lengths of its name and of further fields."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED, _UTF8 = 0x1 | 0x40, 0x800
"""Flags of a file in a zip archive; the latter says how its name is encoded."""
_PLACE = re.compile(
    r"(?P<archive>.+)#(?P<offset>\d+)\+(?P<size>\d+)(?:,(?P<unpacked>\d*),(?P<checksum>\d+))?", re.DOTALL
)


class Member(NamedTuple):
    """A file of an archive."""

    offset: int  # where it begins; in a zip archive, where its header begins
    size: int  # its bytes in the archive
    unpacked: int | None = None  # its bytes after decompression; None if it is stored as it is
    checksum: int | None = None  # CRC-32 of its content, which only zip archives have
    reason: str | None = None  # why it cannot be read, or None


@dataclass(frozen=True)
class Part:
    """Where the content of a file is in an archive; a `Member` with another offset. As text, it is the path."""

    archive: str
    offset: int
    size: int
    unpacked: int | None = None
    checksum: int | None = None

    def __str__(self) -> str:
        more = "" if self.checksum is None else f",{'' if self.unpacked is None else self.unpacked},{self.checksum}"
        return f"{self.archive}#{self.offset}+{self.size}{more}"

    @classmethod
    def of(cls, path: str) -> Part | None:
        """Returns the part that a path stands for, or None for every other path."""
        found = _PLACE.fullmatch(path)
        if found is None or not found["archive"].lower().endswith(ARCHIVES):
            return None
        numbers = (int(found[name]) if found[name] else None for name in ("unpacked", "checksum"))
        return cls(found["archive"], int(found["offset"]), int(found["size"]), *numbers)

    def read(self) -> bytes:
        """Returns the content; raises OSError if the archive cannot be read, or has changed."""
        content = _opened(self.archive).read(self.size, self.offset)
        if self.unpacked is not None:
            content = _inflated(content, self.unpacked)
        whole = len(content) == (self.size if self.unpacked is None else self.unpacked)
        if not whole or (self.checksum is not None and zlib.crc32(content) != self.checksum):
            raise OSError("it is damaged, or its archive has changed")
        return content


def _inflated(content: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
    except zlib.error as error:
        raise OSError(f"its compression is damaged: {error}") from error


class _Archive:
    """An open archive, closed with this object; forks may share it, since nothing depends on a position in it."""

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def read(self, size: int, offset: int) -> bytes:
        assert self._file is not None
        return os.pread(self._file, size, offset)


_open: dict[str, _Archive] = {}


def _opened(path: str) -> _Archive:
    found = _open.get(path)
    if found is None:
        while len(_open) >= MOST_OPEN:
            _open.pop(next(iter(_open)), None)
        found = _open.setdefault(path, _Archive(path))
    return found


def reopen(archive: Path) -> None:
    """Lets the next read open an archive again; another one may have its name since this process read it."""
    _open.pop(str(archive.absolute()), None)


def members(archive: Path) -> Mapping[str, Member]:
    """Returns the files of an archive by name, sorted, without a folder around folders of classes."""
    return _members(archive.absolute())


@cached_while_unchanged
def _members(archive: Path) -> Mapping[str, Member]:
    listed = _of_tar if archive.suffix.lower() == ".tar" else _of_zip
    found: dict[str, Member] = {}
    size = archive.stat().st_size
    try:
        for name, member in listed(archive):
            name = name.removeprefix("./")
            problem = _name_problem(name, name in found) or member.reason or _too_large(member, size)
            found[name] = member._replace(reason=problem)
    except Exception as error:  # each library has several exception types for damaged archives
        kind = "whole, uncompressed .tar" if listed is _of_tar else "whole .zip"
        raise DataError(f"{archive} is not a {kind} archive: {error}.") from error
    return dict(sorted(_without_outer_folder(found).items()))


def _without_outer_folder(found: dict[str, Member]) -> dict[str, Member]:
    names = [Path(name).parts for name in found if not is_skipped(name)]
    outer = {parts[0] for parts in names}
    if len(outer) != 1 or any(len(parts) < 3 for parts in names):
        return found
    (folder,) = outer
    return {name.removeprefix(f"{folder}/"): member for name, member in found.items()}


def _name_problem(name: str, again: bool) -> str | None:
    """Returns why the name of a file cannot be used, or None."""
    if again:
        return "the archive has more than one file of this name"
    parts = name.split("/")
    if name.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "its name is not a path inside the archive"
    return "its name is " + problem if (problem := not_text(name)) else None


def _too_large(member: Member, size: int) -> str | None:
    content = member.size if member.unpacked is None else member.unpacked
    if content > MOST_BYTES or member.size > MOST_BYTES:
        return f"has {content:,} bytes; files in archives may have {MOST_BYTES:,}"
    return "the archive ends before this file does" if member.offset + member.size > size else None


def _of_tar(archive: Path) -> Iterator[tuple[str, Member]]:
    with tarfile.open(archive, "r:") as tar:
        end = -1
        while (entry := tar.next()) is not None:
            vars(tar)["members"] = []  # which would keep all that was read
            if entry.size < 0 or entry.offset_data <= end:
                raise ValueError(f"the header of {entry.name!r} leads back to where it has been read")
            end = entry.offset_data
            if not entry.isdir():
                yield entry.name, Member(entry.offset_data, entry.size, reason=_kind_of_entry(entry))
    _check_end(archive, tar.offset)


def _check_end(archive: Path, end: int) -> None:
    """Checks that a tar archive has zeros, and nothing else, behind its last file."""
    with archive.open("rb") as opened:
        opened.seek(end)
        last = opened.read(_BLOCK)
        if len(last) < _BLOCK or last.strip(b"\0"):
            raise ValueError(f"it breaks off at byte {end:,}")
        while last := opened.read(_CHUNK):
            if last.strip(b"\0"):
                raise ValueError("something follows its end; join archives with `tar --concatenate`, not with `cat`")


def _kind_of_entry(entry: tarfile.TarInfo) -> str | None:
    if entry.issym() or entry.islnk():
        return "is a link to another file; make the archive with `tar --dereference --hard-dereference`"
    if entry.issparse():
        return "is stored with holes; make the archive without `--sparse`"
    return None if entry.isreg() else "is not a file, but a pipe or a device"


def _of_zip(archive: Path) -> Iterator[tuple[str, Member]]:
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            if not entry.is_dir():
                packed = entry.compress_type != zipfile.ZIP_STORED
                yield _name_in_zip(entry), Member(
                    entry.header_offset, entry.compress_size, entry.file_size if packed else None, entry.CRC,
                    _kind_in_zip(entry),
                )  # fmt: skip


def _name_in_zip(entry: zipfile.ZipInfo) -> str:
    """Returns a name; macOS writes UTF-8 without the flag for it, which `zipfile` reads as code page 437."""
    with suppress(UnicodeError):
        return entry.orig_filename if entry.flag_bits & _UTF8 else entry.orig_filename.encode("cp437").decode()
    return entry.orig_filename


def _kind_in_zip(entry: zipfile.ZipInfo) -> str | None:
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "is a link to another file; make the archive without `zip --symlinks`"
    if entry.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if entry.compress_type not in _METHODS:
        return f"is compressed by method {entry.compress_type}; archives may have deflated and stored files"
    if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        return f"is stored in {entry.compress_size:,} bytes, but should have {entry.file_size:,}"
    return None


def part_of(archive: Path, name: str) -> Part:
    """Returns where a file of an archive is; raises KeyError if there is no such file, or ValueError with a reason."""
    member = members(archive)[name]
    if member.reason:
        raise ValueError(member.reason)
    offset = member.offset
    if member.checksum is not None:
        header = _opened(str(archive)).read(_LOCAL.size, offset)
        signature, *lengths = _LOCAL.unpack(header) if len(header) == _LOCAL.size else (b"",)
        if signature != b"PK\x03\x04":
            raise ValueError("the archive is damaged where this file begins")
        offset += _LOCAL.size + sum(lengths)
    return Part(str(archive), offset, member.size, member.unpacked, member.checksum)

"""Files: whole or not there when written, never hanging when read, and errors of the disk as messages."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from pathlib import Path
from typing import IO, Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_SUFFIX = "toolkit-tmp"
"""Suffix of files that are not complete yet; used for nothing else."""
_FORMER = re.compile(rf"\.(?P<name>.+)\.former\.\d+\.{_SUFFIX}")
"""Names of folders that `written_folder` has moved aside."""
MOST_JSON_BYTES = 2**26
MOST_LEVELS = 100
"""Size and depth of a JSON file that the toolkit reads; those that it writes are far below."""


@contextmanager
def written_whole(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a file for writing (`w`: text in UTF-8, `wb`: bytes), which gets the name `path` when the block ends.

    At any moment, `path` is either the previous file or the complete new one; after an error it is the previous one. A
    link is followed. Raises OSError if it cannot be written.
    """
    with temporary_file(path) as temporary, temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file


@contextmanager
def naming(path: Path, needed: int | None = None) -> Iterator[None]:
    """Adds the file, and the bytes to be written to it, to errors of a disk; those of open files lack them."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, ConnectionError) and error.errno is not None:  # one of a connection has no file
            error.filename = path if error.filename is None else error.filename
            if needed is not None:
                vars(error).setdefault("needed", needed)
        raise


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yields the path of an empty file, which is renamed to `path` when the block ends without an error.

    As `written_whole`, for libraries that open files themselves; they may also replace the file.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_name(path)
    try:
        with naming(path):
            temporary.touch()
            mode = temporary.stat().st_mode & 0o777
            yield temporary
            temporary.chmod(mode)  # safetensors creates files that only their owner can read
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def written_folder(path: Path, replacing: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """Yields an empty folder, which replaces the folder `path` when the block ends without an error.

    Until then, and after an error, `path` is the previous folder; `replacing` is called before it is replaced. A link
    is followed. Raises OSError if it cannot be written.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_name(path)
    former = temporary_name(path.with_name(f"{path.name}.former"))
    try:
        with naming(path):
            temporary.mkdir()
            yield temporary
            for entry in (*temporary.rglob("*"), temporary):
                sync(entry)
            replacing()
            if path.exists():
                path.rename(former)
            temporary.rename(path)
            sync(path.parent)
    finally:
        for folder in (temporary, former):
            shutil.rmtree(folder, ignore_errors=True)


def temporary_name(path: Path) -> Path:
    """Returns the temporary path to which this process writes the file `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.{_SUFFIX}")


def is_temporary(path: Path) -> bool:
    """Whether a path is one of `temporary_name`."""
    return path.name.startswith(".") and path.name.endswith(f".{_SUFFIX}")


def expanded(path: str | Path) -> Path:
    """Returns a path with `~` replaced by the folder of the user; unchanged if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  `Path.expanduser` raises without such a user


def kind_of(path: Path) -> str:
    """Returns `folder`, `file`, or an empty string if the path does not exist, or cannot: a name that is too long."""
    try:
        # In this order: another process may make the folder in between.
        return "" if not path.exists() else "folder" if path.is_dir() else "file"
    except OSError:  # also a folder that may not be entered
        return ""


def read_file(path: Path, most: int | None = None) -> bytes:
    """Returns the content of a file; never waits for a pipe or reads a device, which may have no end.

    Raises OSError if it cannot be read, has more than `most` bytes, or is something else than a file.
    """
    with open_regular(path, os.O_RDONLY) as file:
        content = file.read(-1 if most is None else most + 1)
    if most is not None and len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def read_json(path: Path) -> Any:
    """Returns the value of a JSON file of a run, which somebody else may have made.

    Raises OSError as `read_file`; ValueError as `parse_json`.
    """
    return parse_json(read_file(path, MOST_JSON_BYTES))


def read_lines(path: Path) -> list[Any]:
    """Returns the values of a JSON lines file; raises OSError or ValueError if it cannot be read."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def parse_json(content: bytes | str) -> Any:
    """Returns a JSON value that the toolkit can process.

    Raises ValueError if it is not JSON, is nested too deeply, or has an integer that is too large for a float.
    """
    try:
        value = json.loads(content, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise ValueError("nested too deeply")
    return value


def _integer(text: str) -> int:
    value = int(text)
    if abs(value) > sys.float_info.max:
        raise ValueError(f"a number has {len(text)} digits")
    return value


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def cached_while_unchanged(function: F) -> F:
    """Caches a function of a file and hashable arguments until the file's inode, size or modification time changes."""
    cached = lru_cache(maxsize=16)(lambda state, *arguments: function(*arguments))

    @wraps(function)
    def call(file: Path, *arguments: Hashable) -> Any:
        try:
            facts = file.stat()
        except OSError:
            return function(file, *arguments)  # which says what is wrong with the file
        return cached((facts.st_ino, facts.st_size, facts.st_mtime_ns), file, *arguments)

    return call  # type: ignore[return-value]


@contextmanager
def open_regular(path: Path, flags: int) -> Iterator[IO[bytes]]:
    """Opens an existing file of bytes with these flags of `os.open`; raises OSError if it is no regular file."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Removes incomplete files and folders of killed processes from `folder`, to which no other process may write.

    A folder whose replacement was interrupted between the two renames of `written_folder` is restored.
    """
    for entry in filter(is_temporary, [*folder.iterdir()] if folder.is_dir() else []):
        former = _FORMER.fullmatch(entry.name)
        if former and not (folder / former["name"]).exists():
            entry.rename(folder / former["name"])
        elif entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically; infinity and NaN, which JSON does not have, become null."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Returns a value of JSON in which infinity and NaN are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(entry) for name, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def texts_in(value: Any) -> Iterator[str]:
    """Yields the texts in a value of JSON, at any depth, but for names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(inner)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8 atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically."""
    with naming(path, len(content)), written_whole(path, "wb") as file:
        file.write(content)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_DISKS = (*_FULL, errno.EIO, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE)
"""Errors of disks also where a library omits the file."""
_IN_LIBRARIES = re.compile(r"\(os error (\d+)\)|: No space left on device \((\d+)\)")
"""How libraries that are written in Rust, and torch, name the operating system's errors in exceptions of their own."""
_OF_SHARED_MEMORY = "</torch_"
"""Part of torch's errors of files in shared memory."""


def disk_problem(error: BaseException, folder: Path | None = None, needed: int | None = None) -> str | None:
    """Returns the message for an error of a file or a disk, with the path and, for a full disk, its free space.

    Returns None for every other error. Libraries such as safetensors and torch raise errors of their own: `folder` and
    `needed` bytes say what was written where if the error does not (None: the working or the temporary folder).
    """
    import tempfile

    from toolkit.base.console import shorten

    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        place = Path(str(error.filename))
        return f"{shorten(str(place), 200)}: {why(error, place, needed)}"
    if not is_full(error):
        of_disk = _number_of(error) in _OF_DISKS
        return f"a file cannot be read or written ({shorten(str(error), 200)})" if of_disk else None
    if _OF_SHARED_MEMORY in str(error):
        space = _space(error, [Path("/dev/shm")], needed)
        return f"shared memory is full{space}; lower train.dataloader_num_workers, or make /dev/shm larger"
    places = [working_folder(), Path(tempfile.gettempdir()), Path("/dev/shm")] if folder is None else [folder]
    full = [place for place in places if (left := _left(place)) and (left[1] == 0 or left[2])]
    return f"a disk is full ({shorten(str(error), 200)}){_space(error, full or places, needed)}"


def why(error: OSError, place: Path, needed: int | None = None) -> str:
    """Returns the reason for an error of a file, for a message that names it; arguments as for `disk_problem`."""
    return f"{error.strerror or error}{_space(error, [place], needed) if is_full(error) else ''}"


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, a quota or shared memory is used up."""
    return _number_of(error) in _FULL


@contextmanager
def rust_errors_as_os_errors() -> Iterator[None]:
    """Raises an `OSError` instead of the errors that Rust libraries make of the operating system's."""
    try:
        yield
    except Exception as error:
        number = _number_of(error)
        if isinstance(error, OSError) or number is None:
            raise
        raise OSError(number, os.strerror(number)) from error


def _number_of(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _IN_LIBRARIES.search(str(error))
    return int(found[1] or found[2]) if found else None


def _space(error: BaseException, places: list[Path], needed: int | None) -> str:
    """Returns the needed bytes, if known, and the free bytes in places on different disks."""
    from toolkit.base.console import format_bytes

    needed = getattr(error, "needed", None) if needed is None else needed
    found = [] if needed is None else [f"{format_bytes(needed)} are needed"]
    for place in places:
        if (left := _left(place)) is not None and not str(place).startswith("<"):  # `<stdout>` is on no disk
            what = "but no more files (inodes)" if left[2] else "free"
            found.append(f"{format_bytes(left[1])} are {what} in {left[0]}")
    return f"; {', '.join(found)}" if found else ""


def _left(place: Path) -> tuple[Path, int, bool] | None:
    """Returns the folder of a path, which need not exist, its free bytes, and whether it takes no more files."""
    try:
        folder = next(each for each in (place, *place.absolute().parents) if each.is_dir())
        return folder, shutil.disk_usage(folder).free, free_inodes(folder) == 0
    except (OSError, StopIteration):
        return None


def free_inodes(folder: Path) -> int | None:
    """Returns how many more files fit; None for file systems without a fixed number."""
    space = os.statvfs(folder)
    return space.f_favail if space.f_files else None


def working_folder() -> Path:
    """Returns the working directory, or the root if it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def sha256(content: bytes | str) -> str:
    """Returns the sha256 of bytes, or of text in UTF-8, in hexadecimal."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def file_sha256(path: Path) -> str:
    """Returns the sha256 of a file's bytes, in hexadecimal; raises OSError if it cannot be read, or is not regular."""
    with open_regular(path, os.O_RDONLY) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type] # binary files have readinto


COPIED_BYTES = 2**20
"""Bytes that are copied at a time."""


def copy_and_hash(source: Path, copy: Path) -> str:
    """Copies the bytes of a file, and returns their sha256 in hexadecimal."""
    digest = hashlib.sha256()
    with source.open("rb") as reading, copy.open("wb") as writing:
        while chunk := reading.read(COPIED_BYTES):
            digest.update(chunk)
            writing.write(chunk)
    return digest.hexdigest()

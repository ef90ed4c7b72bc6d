"""Downloads single files, with a timeout and a size limit; a file is complete or does not exist."""

from __future__ import annotations

import os
import shutil
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from toolkit.base.errors import ToolkitError

TIMEOUT_SECONDS = 30.0
"""How long a server may take to respond."""
MAX_BYTES = 2**28
"""Largest download, far above that of every dataset."""
_CHUNK = 2**16


class DownloadError(ToolkitError):
    """A dataset cannot be downloaded, or is not as expected: exit code 1."""


def download(url: str, path: Path, timeout: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> None:
    """Downloads a file under a temporary name, and renames it when it is complete and on the disk.

    Args:
        url: address of the file.
        path: the file to write.
        timeout: seconds that the server may take to respond.
        max_bytes: largest size of the file.

    Raises:
        DownloadError: if the download fails, is incomplete or too large, or cannot be written.
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
    """Copies a file that was downloaded by hand.

    Args:
        mirror: folder of the downloaded files.
        file: name of the file in it.
        path: the file to write.

    Raises:
        DownloadError: if the file does not exist or cannot be read.
    """
    try:
        shutil.copyfile(mirror / file, path)
    except OSError as error:
        raise DownloadError(f"--from: cannot read {(mirror / file).absolute()}: {error.strerror}") from error

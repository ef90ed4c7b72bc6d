"""Checksums of dataset files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from toolkit.base.files import file_sha256


def digest(path: Path) -> str:
    """Returns the sha256, in hexadecimal, of a file, or of the names and contents of the files in a folder.

    The content of a PNG image in a folder is its pixels: its bytes depend on the version of zlib.
    """
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

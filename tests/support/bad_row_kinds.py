"""Rows that cannot be used, by the kind of their file; each goes beside good ones."""

from __future__ import annotations

import io
import os
import wave
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from audio_files import encoded as recording
from audio_files import tone
from image_files import encoded as picture
from image_files import noise
from PIL import Image

CSV = {
    "one field": b"lonely",
    "three fields": b"fine,positive,more",
    "no text": b",positive",
    "blank text": b"  ,positive",
    "no label": b"fine,",
    "unknown label": b"fine,so-so",
    "label in capitals with a space": b"fine, POSITIVELY",
    "not UTF-8": b"caf\xe9,positive",
    "a continuation byte alone": b"\x80\x81,positive",
    "an overlong encoding": b"\xc0\xaf,positive",
    "an encoded surrogate": b"\xed\xa0\x80,positive",
    "a NUL byte": b"a\0b,positive",
    "a field of 20 MB": b"x" * 20_000_000 + b",positive",
    "a quote that is not closed": b'"open,positive',  # the last row: it takes the rest of the file
}
JSONL = {
    "half an object": b'{"text": "x", "label',
    "a list": b'["x", "positive"]',
    "a string": b'"x"',
    "a number": b"1",
    "null": b"null",
    "words": b"just words",
    "no text": b'{"label": "positive"}',
    "text is null": b'{"text": null, "label": "positive"}',
    "text is empty": b'{"text": "", "label": "positive"}',
    "text is a list": b'{"text": ["x"], "label": "positive"}',
    "text is an object": b'{"text": {"x": 1}, "label": "positive"}',
    "no label": b'{"text": "x"}',
    "label is null": b'{"text": "x", "label": null}',
    "label is a list": b'{"text": "x", "label": ["positive"]}',
    "unknown label": b'{"text": "x", "label": "so-so"}',
    "an escape that is none": b'{"text": "\\x", "label": "positive"}',
    "half a surrogate pair": b'{"text": "\\ud800", "label": "positive"}',
    "not UTF-8": b'{"text": "caf\xe9", "label": "positive"}',
    "nested 100,000 deep": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b', "label": "positive"}',
    "two objects": b'{"text": "x", "label": "positive"} {"text": "y", "label": "negative"}',
}
JSON: dict[str, object] = {
    "a list": ["x", "positive"],
    "a string": "x",
    "null": None,
    "no text": {"label": "positive"},
    "text is a list": {"text": ["x"], "label": "positive"},
    "unknown label": {"text": "x", "label": "so-so"},
}
COLUMNS: dict[str, tuple[object, object]] = {
    "no text": (None, "positive"),
    "blank text": ("   ", "positive"),
    "no label": ("fine", None),
    "unknown label": ("fine", "so-so"),
}
"""Text and label of rows in parquet files and workbooks."""


def _cut(content: bytes, part: float = 0.5) -> bytes:
    return content[: round(len(content) * part)]


def _huge_png() -> bytes:
    """Returns a PNG whose header declares 20,000 x 20,000 pixels, without their data."""
    content = bytearray(picture(noise(2, 2)))
    content[16:24] = (20_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def _promising_wav() -> bytes:
    """Returns a WAV whose header promises ten times as many bytes as follow."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\1" * 4000)
    content = bytearray(buffer.getvalue())
    content[40:44] = (80_000).to_bytes(4, "little")
    return bytes(content)


IMAGES = {
    "empty.png": b"",
    "words.png": b"just words",
    "cut.jpg": _cut(picture(noise(64, 64, 3), "JPEG"), 0.4),
    "cut.png": _cut(picture(noise(64, 64, 3))),
    "huge.png": _huge_png(),
    "float.tif": picture(Image.fromarray(np.random.default_rng(0).random((9, 9), np.float32)), "TIFF"),
    "header.gif": b"GIF89a",
    "zeros.png": b"\x89PNG\r\n\x1a\n" + bytes(200),
}
AUDIO = {
    "empty.wav": b"",
    "words.wav": b"just words",
    "cut.flac": _cut(recording(tone(1.0), form="FLAC")),
    "cut.mp3": _cut(recording(tone(1.0), form="MP3")),
    "cut.wav": _cut(recording(tone(1.0))),
    "cut.ogg": _cut(recording(tone(3.0), form="OGG")),
    "promising.wav": _promising_wav(),
    "nan.wav": recording(np.full(8000, np.nan), subtype="FLOAT"),
    "infinite.wav": recording(np.full(8000, np.inf), subtype="FLOAT"),
    "nothing.wav": recording(tone(0.0)),
    "header.wav": b"RIFF\x24\0\0\0WAVEfmt ",
}


def _link(path: Path, target: str) -> None:
    path.symlink_to(target)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "zero": lambda path: _link(path, "/dev/zero"),
    "dangling": lambda path: _link(path, "nowhere"),
    "itself": lambda path: _link(path, path.name),
    "folder": Path.mkdir,
    "missing": lambda path: None,
}
"""Files of images and recordings that are not regular files."""

"""Opens audio files and measures them; AAC and WMA are decoded with PyAV or the program ffmpeg."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from toolkit.data.media.files import open_file

COMPRESSED = (".aac", ".m4a", ".wma")
"""Suffixes of files that soundfile cannot read."""
FORMATS = "aac,asf,flac,matroska,mov,mp3,ogg,wav"
"""Their formats. Other formats of FFmpeg's are lists of further files, which it would open."""
FFMPEG_SECONDS = 600.0


@contextmanager
def open_sound(file: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """Opens a row's audio file in a format that soundfile reads: AAC and WMA become a WAV file in memory.

    Raises:
        ValueError: if the file is AAC or WMA, and cannot be decoded, or no decoder is installed.
        OSError: if it cannot be opened.
    """
    name = Path(file["name"])
    with open_file(file) as opened:
        yield io.BytesIO(_wave(opened, name)) if name.suffix.lower() in COMPRESSED else opened


def _wave(opened: BinaryIO, name: Path) -> bytes:
    """Returns a compressed file as a WAV file of 32-bit samples."""
    try:
        import av
    except ImportError:
        program = shutil.which("ffmpeg")
        if program is None:
            raise ValueError(
                f"{name.suffix} files need PyAV (pip install 'finetune-toolkit[m4a]') or the program ffmpeg, "
                f"or convert them: ffmpeg -i {name.name} {name.stem}.wav"
            ) from None
        return _by_ffmpeg(program, opened.read(), name.suffix)
    try:
        return _by_av(av, opened)
    except av.FFmpegError as error:
        raise ValueError(f"cannot be decoded: {error.strerror}") from error


def _by_av(av: Any, opened: BinaryIO) -> bytes:
    import soundfile

    with av.open(opened, options={"format_whitelist": FORMATS}) as container:
        if not container.streams.audio:
            raise ValueError("has no audio")
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp")
        parts = [part.to_ndarray() for frame in container.decode(stream) for part in resampler.resample(frame)]
        rate = stream.rate
    buffer = io.BytesIO()
    samples = np.concatenate(parts, axis=1).T if parts else np.zeros((0, 1), np.float32)
    soundfile.write(buffer, samples, rate, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def _by_ffmpeg(program: str, content: bytes, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:  # a pipe cannot be rewound, which these formats need
        source, target = Path(folder, f"in{suffix}"), Path(folder, "out.wav")
        source.write_bytes(content)
        read = ["-format_whitelist", FORMATS, "-i", str(source)]
        command = [program, "-v", "error", "-nostdin", *read, "-vn", "-c:a", "pcm_f32le", str(target)]
        try:
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=FFMPEG_SECONDS)
        except subprocess.TimeoutExpired:
            raise ValueError(f"not decoded by ffmpeg within {FFMPEG_SECONDS:g} s") from None
        if done.returncode:
            reason = done.stderr.replace(str(source), "it").strip().splitlines() or [f"exit code {done.returncode}"]
            raise ValueError(f"cannot be decoded by ffmpeg: {reason[-1]}")
        return target.read_bytes()


WITH_LENGTH = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
"""Formats, as soundfile names them, of which it is noticed that a file breaks off."""
UNKNOWN_SIZES = (0, 2**32 - 1, 2**64 - 1)
"""Sizes in the header of a WAV file that was written to a pipe."""
_BYTE_ORDERS = {b"RIFF": "<", b"RIFX": ">", b"RF64": "<"}
_IN_DS64 = 2**32 - 1
"""Size in the header of an RF64 file that stands for one of 64 bits, which comes before."""
_MOST_MISSING = 1 - 1e-15
_PAGE_BYTES = 2**16
"""An Ogg page is at most this long, with its header."""
_LAST_PAGE = 0x04


def missing_share(file: BinaryIO) -> float | None:
    """Returns how much of the audio that a WAV file promises is missing, from 0 to nearly 1; None for other formats.

    RIFX is WAV in the other byte order, RF64 is WAV of more than 4 GiB. The position in the file is restored.
    """
    start = file.tell()
    try:
        order, long_size = _BYTE_ORDERS.get(file.read(4)), None
        if order is None or file.read(8)[4:] != b"WAVE":
            return None
        while len(header := file.read(8)) == 8:
            name, size = struct.unpack(f"{order}4sI", header)
            here = file.tell()
            if name == b"ds64":
                long_size = int.from_bytes(file.read(16)[8:], "little")
            if name == b"data":
                size = long_size if size == _IN_DS64 and long_size is not None else size
                present = file.seek(0, 2) - here
                return 0.0 if size in UNKNOWN_SIZES else min(max(0.0, 1 - present / size), _MOST_MISSING)
            file.seek(here + size + size % 2)
        return None
    finally:
        file.seek(start)


def lacks_last_page(file: BinaryIO) -> bool:
    """Returns whether an Ogg file ends before the page that is marked as its last; the position is restored."""
    start = file.tell()
    try:
        if file.read(4) != b"OggS":
            return False
        file.seek(max(start, file.seek(0, 2) - _PAGE_BYTES))
        end = file.read()
        page = end.rfind(b"OggS")
        return page < 0 or len(end) < page + 6 or not end[page + 5] & _LAST_PAGE
    finally:
        file.seek(start)

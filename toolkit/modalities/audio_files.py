"""Opens audio files; AAC and WMA are decoded with PyAV or the program ffmpeg."""

from __future__ import annotations

import io
import shutil
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
"""What such a file may be. Other formats of FFmpeg's are lists that name further files, which it would open."""
FFMPEG_SECONDS = 600.0


@contextmanager
def open_sound(file: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """Opens a row's audio file for reading, in a format that soundfile knows: AAC and WMA become a WAV file in memory.

    Args:
        file: a reference with the file's `name` and location.

    Raises:
        ValueError: if the file is AAC or WMA, and cannot be decoded, or nothing that can is installed.
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

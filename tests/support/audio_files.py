"""Waveforms and encoded audio files for tests."""

from __future__ import annotations

import io

import av
import numpy as np
import soundfile


def tone(seconds: float, rate: int = 16000, channels: int = 1, frequency: float = 440.0) -> np.ndarray:
    wave = 0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)
    return np.stack([wave] * channels, axis=1)


def encoded(samples: np.ndarray, rate: int = 16000, form: str = "WAV", **arguments) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form, **arguments)
    return buffer.getvalue()


def compressed(samples: np.ndarray, form: str = "ipod", codec: str = "aac", rate: int = 16000) -> bytes:
    """Returns samples `[frames, 1]`, by default as AAC in an .m4a file."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono", bit_rate=32_000)
        frame = av.AudioFrame.from_ndarray(samples.T.astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate = rate
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return buffer.getvalue()

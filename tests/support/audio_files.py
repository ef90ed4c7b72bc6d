"""Waveforms and encoded audio files for tests."""

from __future__ import annotations

import io

import numpy as np
import soundfile


def tone(seconds: float, rate: int = 16000, channels: int = 1, frequency: float = 440.0) -> np.ndarray:
    wave = 0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)
    return np.stack([wave] * channels, axis=1)


def encoded(samples: np.ndarray, rate: int = 16000, form: str = "WAV", **arguments) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form, **arguments)
    return buffer.getvalue()

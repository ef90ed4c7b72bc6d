"""Fingerprints of images and audio, which change little if a file is scaled, compressed or made louder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from toolkit.api.batch import BadRow

SIDE, COARSE = 16, 8
"""Cells of a grid on each side: that which is compared, and that whose steps are the keys."""
LEAST_STEP = 2
"""Difference of two neighbouring cells, of 255, from which it counts."""
MOST_BITS = 20
"""Two files are compared cell by cell if at most this many of their 128 bits differ."""
LEAST_CORRELATION = {"image": 0.96, "audio": 0.995}
"""Two files are nearly equal if their cells have this correlation, which brightness, contrast and loudness leave."""
MOST_SECONDS = 30.0
LOWEST_HERTZ, HIGHEST_HERTZ, RANGE_DECIBEL = 100.0, 3500.0, 60.0
WINDOW_SECONDS = 0.032
MOST_LENGTH = 0.02
"""Relative difference of the lengths of two clips that are nearly equal."""


@dataclass(frozen=True)
class Print:
    """The fingerprint of a file.

    Args:
        bits: `[128]` bool, whether a cell is brighter than its left or its upper neighbour (a difference hash).
        cells: `[16, 16, ...]` uint8: colours, or loudness by frequency and time.
        size: width and height in pixels, or the length in seconds.
    """

    bits: np.ndarray
    cells: np.ndarray
    size: tuple[float, ...]

    @property
    def keys(self) -> np.ndarray:
        """`[8]` uint64, parts of the bits."""
        return np.packbits(self.bits).view(np.uint16).astype(np.uint64)


def steps(wide: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns the bits of a fingerprint.

    Args:
        wide: `[8, 9]` uint8 cells.
        high: `[9, 8]` uint8 cells.
    """
    across, down = (np.diff(cells.astype(np.int16), axis=axis) for cells, axis in ((wide, 1), (high, 0)))
    return np.concatenate([across.ravel(), down.ravel()]) >= LEAST_STEP


def of_image(file: Mapping[str, Any], max_pixels: int) -> Print | None:
    """Returns the fingerprint of an image; None if it can no longer be read."""
    from PIL import Image

    from toolkit.modalities.image_files import as_channels, decode

    try:
        image = as_channels(decode(file, max_pixels), 3)
    except BadRow:
        return None
    grey, average = image.convert("L"), Image.Resampling.BOX
    wide, high = (np.asarray(grey.resize(size, average)) for size in ((COARSE + 1, COARSE), (COARSE, COARSE + 1)))
    cells = np.asarray(image.resize((SIDE, SIDE), average))
    return Print(steps(wide, high), cells, (float(image.width), float(image.height)))


def of_audio(file: Mapping[str, Any]) -> Print | None:
    """Returns the fingerprint of a clip, of its first `MOST_SECONDS`; None if it can no longer be read."""
    import soundfile

    from toolkit.modalities.audio_files import open_sound

    try:
        with open_sound(file) as opened, soundfile.SoundFile(opened) as sound:
            rate, length = sound.samplerate, sound.frames / sound.samplerate
            samples = sound.read(round(MOST_SECONDS * rate), dtype="float32", always_2d=True).mean(axis=1)
    except (soundfile.SoundFileError, OSError, ValueError):
        return None
    wide, high, cells = (
        loudness(samples, rate, *shape) for shape in ((COARSE, COARSE + 1), (COARSE + 1, COARSE), (SIDE, SIDE))
    )
    return Print(steps(wide, high), cells, (length,))


def loudness(samples: np.ndarray, rate: int, bands: int, stretches: int) -> np.ndarray:
    """Returns the loudness of a clip by frequency and time.

    Args:
        samples: `[N]` float32.
        rate: samples per second.
        bands: number of bands of frequencies.
        stretches: number of stretches of time.

    Returns:
        `[bands, stretches]` uint8: 255 is the loudest cell, 0 is `RANGE_DECIBEL` below it.
    """
    wide = max(round(WINDOW_SECONDS * rate), 2)
    padded = np.pad(samples, (0, max(0, stretches * wide - len(samples))))
    frames = padded[: len(padded) // wide * wide].reshape(-1, wide) * np.hanning(wide).astype(np.float32)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    edges = np.geomspace(LOWEST_HERTZ, HIGHEST_HERTZ, bands + 1) * wide / rate
    columns = np.clip(np.floor(edges).astype(int), 0, power.shape[1] - 1)
    found = np.stack([power[:, a : max(b, a + 1)].sum(axis=1) for a, b in pairwise(columns)])
    cells = np.stack([part.mean(axis=1) for part in np.array_split(found, stretches, axis=1)], axis=1)
    decibel = 10 * np.log10(np.maximum(cells / max(float(cells.max()), 1e-20), 1e-20))
    return np.clip(255 * (1 + decibel / RANGE_DECIBEL), 0, 255).astype(np.uint8)


def likeness(one: Print, other: Print, kind: str) -> float | None:
    """Returns the correlation of two fingerprints' cells; None if the files are not nearly equal.

    Args:
        one: a fingerprint.
        other: another.
        kind: `image` or `audio`; clips must have nearly the same length, too.
    """
    if kind == "audio" and abs(one.size[0] - other.size[0]) > MOST_LENGTH * max(one.size[0], other.size[0]):
        return None
    if int((one.bits != other.bits).sum()) > MOST_BITS:
        return None
    left, right = (each.cells.ravel() - each.cells.mean() for each in (one, other))
    scale = float(np.sqrt((left**2).sum() * (right**2).sum()))
    correlation = float((left * right).sum()) / scale if scale else float(np.array_equal(one.cells, other.cells))
    return correlation if correlation >= LEAST_CORRELATION[kind] else None

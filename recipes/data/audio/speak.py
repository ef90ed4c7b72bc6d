"""Makes the sample recordings: four words of two vowels each, as one voice after the other says them.

python recipes/data/audio/speak.py FOLDER

A voice is a pitch and the length of a throat, which scales all formants. Training and validation share no voice.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 8000
FORMANTS = {"a": (730, 1090, 2440), "i": (280, 2250, 2900), "u": (310, 870, 2250), "e": (530, 1840, 2480)}
"""Centres of the first three formants in Hz, for a man's voice (Peterson and Barney 1952)."""
BANDWIDTHS = np.array([80.0, 110.0, 160.0])
WORDS = {"aiya": "ai", "auwa": "au", "iyu": "iu", "ewa": "ea"}
VOICES = {
    "train": {"anna": (205, 1.14), "bruno": (105, 0.98), "carla": (180, 1.1), "dario": (125, 1.02), "emil": (90, 0.95)},
    "validation": {"flora": (220, 1.17), "georg": (115, 1.0), "hanna": (165, 1.07)},
}
"""Pitch in Hz and scale of the formants of each voice."""
TAKES = {"train": 4, "validation": 4}


def say(word: str, pitch: float, scale: float, generator: np.random.Generator) -> np.ndarray:
    """Returns a word as `[samples]` between -1 and 1: harmonics of the voice, shaped by formants that glide."""
    seconds = generator.uniform(0.3, 0.45)
    time = np.arange(round(seconds * RATE)) / RATE
    part = time / seconds
    glide = 1 / (1 + np.exp(-(part - generator.uniform(0.4, 0.6)) * 14))
    first, second = (np.array(FORMANTS[vowel]) * scale * generator.uniform(0.97, 1.03) for vowel in WORDS[word])
    centres = first + (second - first) * glide[:, None]
    now = pitch * generator.uniform(0.94, 1.06) * (1.08 - 0.16 * part) * (1 + 0.01 * np.sin(2 * np.pi * 5 * time))
    phase = 2 * np.pi * np.cumsum(now) / RATE
    sound = np.zeros_like(time)
    for harmonic in range(1, int(RATE / 2 / now.max())):
        frequency = (harmonic * now)[:, None]
        resonance = (BANDWIDTHS**2 / ((frequency - centres) ** 2 + BANDWIDTHS**2)).sum(axis=1)
        sound += resonance / harmonic**0.5 * np.sin(harmonic * phase)
    envelope = np.minimum(1, np.minimum(part, 1 - part) * 12)
    sound = sound / np.abs(sound).max() * envelope * generator.uniform(0.3, 0.8)
    silence = [np.zeros(generator.integers(0, RATE // 20)) for _ in range(2)]
    whole = np.concatenate([silence[0], sound, silence[1]])
    return whole + generator.normal(0, 0.002, len(whole))


def main(folder: Path) -> None:
    """Writes `folder/<split>/<word>/<voice>-<take>.flac`."""
    for split, voices in VOICES.items():
        for voice, (pitch, scale) in voices.items():
            for word in WORDS:
                for take in range(TAKES[split]):
                    generator = np.random.default_rng([sum(map(ord, voice + word)), take])
                    path = folder / split / word / f"{voice}-{take}.flac"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    soundfile.write(path, say(word, pitch, scale, generator), RATE, subtype="PCM_16")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Joins recordings of single words to utterances with transcripts, for speech recognition.

python recipes/data/audio/join.py data/spoken_digits data/joined_digits

Reads `<folder>/<part>/<word>/<speaker>_<take>.wav` (`toolkit data get spoken_digits`) and writes, for each part,
`<part>/*.wav` and `<part>.csv` with the columns `audio`, `text` and `speaker`. An utterance has one speaker, and all
recordings of a speaker are used equally often. The same files and options always give the same utterances.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SILENCE = (0.05, 0.25)
"""Shortest and longest silence between two words, and half of that before the first and after the last, in seconds."""
Recording = tuple[str, np.ndarray]


def recordings(part: Path) -> tuple[dict[str, list[Recording]], int]:
    """Returns the words and samples of each speaker's recordings, and their sampling rate; raises SystemExit."""
    found: dict[str, list[Recording]] = {}
    rates = set()
    for file in sorted(part.glob("*/*.*")):
        name = re.fullmatch(r"(?:.*[_-])?([^_-]+)[_-]\d+", file.stem)
        if name is None:
            raise SystemExit(f"{file}: expected a name such as anna_7.wav, speaker and number")
        samples, rate = soundfile.read(file, dtype="float32")
        word = DIGITS[int(file.parent.name)] if re.fullmatch(r"\d", file.parent.name) else file.parent.name
        found.setdefault(name[1], []).append((word, samples if samples.ndim == 1 else samples.mean(axis=1)))
        rates.add(rate)
    if len(rates) != 1:
        raise SystemExit(f"{part}: expected recordings of one sampling rate in folders of words, found {sorted(rates)}")
    return found, rates.pop()


def endless(items: list[Recording], generator: np.random.Generator) -> Iterator[Recording]:
    """Yields all items in random order, again and again."""
    while True:
        for index in generator.permutation(len(items)):
            yield items[index]


def quietest(samples: np.ndarray, rate: int) -> float:
    """Returns the level (root mean square) of the quietest 10 ms, which is that of the background noise."""
    size = rate // 100
    whole = samples[: len(samples) // size * size].reshape(-1, size)
    return float(np.sqrt((whole**2).mean(axis=1)).min()) if len(whole) else 0.0


def joined(words: list[Recording], rate: int, generator: np.random.Generator) -> np.ndarray:
    """Returns the words with silence around them, which has up to the noise of the recordings."""
    noise = generator.uniform() * min(quietest(samples, rate) for _, samples in words)
    seconds = generator.uniform(*SILENCE, len(words) + 1)
    seconds[[0, -1]] /= 2
    silences = [generator.normal(0, noise, round(each * rate)).astype(np.float32) for each in seconds]
    parts = [part for silence, (_, samples) in zip(silences, words, strict=False) for part in (silence, samples)]
    return np.concatenate([*parts, silences[-1]])


def write(part: Path, target: Path, count: int, words: tuple[int, int], seed: int) -> float:
    """Writes the utterances of one part, and returns their length in seconds."""
    generator = np.random.default_rng([seed, *part.name.encode()])
    found, rate = recordings(part)
    speakers = sorted(found)
    decks = {speaker: endless(found[speaker], generator) for speaker in speakers}
    (target / part.name).mkdir(parents=True, exist_ok=True)
    total = 0
    with (target / f"{part.name}.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["audio", "text", "speaker"])
        for number in range(count):
            speaker = speakers[number % len(speakers)]
            chosen = [next(decks[speaker]) for _ in range(generator.integers(words[0], words[1] + 1))]
            name = f"{part.name}/{speaker}_{number:05}.wav"
            samples = joined(chosen, rate, generator)
            soundfile.write(target / name, samples, rate, subtype="PCM_16")
            table.writerow([name, " ".join(word for word, _ in chosen), speaker])
            total += len(samples)
    return total / rate


def main(arguments: list[str]) -> None:
    """Joins the recordings of every part of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, help="the recordings, with the folders train, validation, test or some of them"
    )
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument(
        "--words",
        type=int,
        nargs=2,
        default=(1, 4),
        metavar=("LEAST", "MOST"),
        help="words of an utterance; default: 1 4",
    )
    parser.add_argument("--utterances", type=int, default=1600, help="utterances of train; default: 1600")
    parser.add_argument("--held-out", type=int, default=200, help="utterances of each other part; default: 200")
    parser.add_argument("--seed", type=int, default=0, help="another seed joins other words; default: 0")
    options = parser.parse_args(arguments)
    if not 1 <= options.words[0] <= options.words[1]:
        parser.error(
            f"--words: received {options.words[0]} {options.words[1]}, expected two numbers from 1 up, in order"
        )
    parts = [options.folder / name for name in ("train", "validation", "test") if (options.folder / name).is_dir()]
    if not parts:
        parser.error(f"{options.folder} has no folder train, validation or test")
    for part in parts:
        count = options.utterances if part.name == "train" else options.held_out
        seconds = write(part, options.target, count, tuple(options.words), options.seed)
        print(f"{options.target / part.name}.csv: {count} utterances, {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    main(sys.argv[1:])

"""recipes/data/audio/join.py: utterances of one voice each, whose transcripts name their words, always the same."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from runs import ROOT

AUDIO = ROOT / "recipes/data/audio"
WORDS = {"aiya", "auwa", "ewa", "iyu"}


@pytest.fixture
def join(monkeypatch) -> Any:
    """Returns the script's function `main`."""
    monkeypatch.syspath_prepend(str(AUDIO))
    return import_module("join").main


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_utterances_have_one_voice_and_the_words_of_their_transcript(join, tmp_path) -> None:
    join([str(AUDIO), str(tmp_path), "--words", "2", "3", "--utterances", "40", "--held-out", "12"])
    train, validation = rows(tmp_path / "train.csv"), rows(tmp_path / "validation.csv")
    assert (len(train), len(validation)) == (40, 12)
    assert {row["speaker"] for row in train} == {"anna", "bruno", "carla", "dario", "emil"}
    assert {row["speaker"] for row in validation} == {"flora", "georg", "hanna"}
    for row in [*train, *validation]:
        said = row["text"].split()
        assert set(said) <= WORDS
        assert len(said) in (2, 3)
        samples, rate = soundfile.read(tmp_path / row["audio"])
        assert rate == 8000
        assert 0.3 * len(said) < len(samples) / rate < 0.85 * len(said) + 0.25  # a word has 0.3 to 0.55 s


def test_the_recordings_of_a_voice_are_used_equally_often(join, tmp_path) -> None:
    join([str(AUDIO), str(tmp_path), "--words", "4", "4", "--utterances", "20", "--held-out", "3"])
    said = Counter((row["speaker"], word) for row in rows(tmp_path / "train.csv") for word in row["text"].split())
    assert set(said.values()) == {4}  # 16 words of each of 5 voices, 4 words with 4 takes


def test_the_same_seed_gives_the_same_files_and_another_gives_others(join, tmp_path) -> None:
    for name, seed in (("one", "0"), ("same", "0"), ("other", "1")):
        join([str(AUDIO), str(tmp_path / name), "--utterances", "6", "--held-out", "3", "--seed", seed])
    one, same, other = (digests(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same
    assert one["train.csv"] != other["train.csv"]


def test_digits_are_spelled_and_names_may_begin_with_the_digit(join, tmp_path) -> None:
    for digit in (0, 7):
        for name in ("theo_3", f"{digit}_lucas_12"):
            file = tmp_path / "digits/train" / str(digit) / f"{name}.wav"
            file.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(file, np.sin(np.arange(2000) / 5) * 0.1, 8000)
    join([str(tmp_path / "digits"), str(tmp_path / "joined"), "--utterances", "8", "--words", "1", "1"])
    found = rows(tmp_path / "joined/train.csv")
    assert {(row["speaker"], row["text"]) for row in found} == {
        (speaker, word) for speaker in ("theo", "lucas") for word in ("zero", "seven")
    }
    assert not (tmp_path / "joined/validation.csv").exists()


def test_what_cannot_be_joined_is_said(join, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        join([str(tmp_path), str(tmp_path / "out")])
    assert "no folder train, validation or test" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        join([str(AUDIO), str(tmp_path / "out"), "--words", "3", "2"])
    assert "--words: received 3 2" in capsys.readouterr().err
    file = tmp_path / "words/train/yes/mary.wav"
    file.parent.mkdir(parents=True)
    soundfile.write(file, np.zeros(800), 8000)
    with pytest.raises(SystemExit, match=r"mary\.wav: expected a name such as anna_7.wav"):
        join([str(tmp_path / "words"), str(tmp_path / "out")])
    file.rename(file.with_name("mary_1.wav"))
    soundfile.write(file.with_name("mary_2.wav"), np.zeros(800), 16000)
    with pytest.raises(SystemExit, match=r"one sampling rate .* found \[8000, 16000\]"):
        join([str(tmp_path / "words"), str(tmp_path / "out")])

"""The sample data is small and documented, and its validation parts share nothing with the training parts."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from runs import ROOT

from toolkit.data.sources import read_rows

DATA = ROOT / "recipes/data"
PARTS = ("train", "validation")


def sentences(texts: Iterable[str]) -> list[str]:
    """Returns the sentences of texts, without case and punctuation."""
    parts = (part for text in texts for part in re.split(r"(?<=[.!?])\s+", text))
    return [words for part in parts if (words := " ".join(re.findall(r"\w+", part.lower())))]


def reviews(part: str) -> list[str]:
    with (DATA / "reviews" / f"{part}.csv").open(encoding="utf-8") as file:
        return sentences(row["text"] for row in csv.DictReader(file))


def letters(part: str) -> list[str]:
    with (DATA / "letters" / f"{part}.csv").open(encoding="utf-8") as file:
        return sentences(row[name] for row in csv.DictReader(file) for name in ("subject", "body", "reply"))


def questions(part: str) -> list[str]:
    data = json.loads((DATA / "qa" / f"{part}.json").read_text("utf-8"))["data"]
    paragraphs = [paragraph for title in data for paragraph in title["paragraphs"]]
    asked = [question["question"] for paragraph in paragraphs for question in paragraph["qas"]]
    return sentences([*(paragraph["context"] for paragraph in paragraphs), *asked])


def pairs(part: str) -> list[str]:
    rows = json_lines(DATA / "translation" / f"{part}.jsonl")
    return sentences(text for row in rows for text in row["translation"].values())


def json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def prose(part: str) -> list[str]:
    folder = DATA / "language_modeling"
    talks = [row["messages"] for row in json_lines(folder / f"chat_{part}.jsonl")]
    said = [message["content"] for talk in talks for message in talk if message["role"] != "system"]
    return sentences([*(folder / f"{part}.txt").read_text("utf-8").splitlines(), *said])


def summaries(part: str) -> list[str]:
    return sentences(text for row in json_lines(DATA / "summarization" / f"{part}.jsonl") for text in row.values())


def tagged(part: str) -> list[str]:
    return sentences(" ".join(row.values["tokens"]) for row in read_rows(DATA / f"token_classification/{part}.conll"))


def things(folder: str, part: str) -> list[str]:
    """Returns the subjects in file names: `oak-03.png` shows an oak, `anna-1.flac` is Anna's voice."""
    return [path.name.partition("-")[0] for path in sorted((DATA / folder / part).glob("*/*"))]


SOURCES = {
    "audio": lambda part: things("audio", part),
    "images": lambda part: things("images", part),
    "language_modeling": prose,
    "letters": letters,
    "preference": lambda part: sentences(row["prompt"] for row in json_lines(DATA / f"preference/{part}.jsonl")),
    "qa": questions,
    "reviews": reviews,
    "summarization": summaries,
    "token_classification": tagged,
    "translation": pairs,
}


def files() -> list[Path]:
    return [path for path in DATA.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_every_set_is_described_and_all_are_small() -> None:
    assert {path.name for path in DATA.iterdir()} == SOURCES.keys()
    for folder in DATA.iterdir():
        assert "Licence: Apache-2.0" in (folder / "README.md").read_text("utf-8"), folder.name
    assert sum(path.stat().st_size for path in files()) < 3_000_000


@pytest.mark.parametrize("name", SOURCES)
def test_validation_is_new(name: str) -> None:
    train, validation = (SOURCES[name](part) for part in PARTS)
    assert min(len(train), len(validation)) > 40
    assert set(train).isdisjoint(validation)


@pytest.mark.parametrize("folder", ["audio", "images"])
def test_no_file_stands_twice(folder: str) -> None:
    contents = [path.read_bytes() for path in files() if path.suffix in (".png", ".flac") and folder in path.parts]
    assert len(set(contents)) == len(contents) > 100

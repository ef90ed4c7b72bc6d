"""Writes small files in the state that real files have, one kind of data each."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from audio_files import encoded as audio
from audio_files import tone
from image_files import encoded as image
from image_files import noise

ENGLISH = "the boots are great and they hold for years with this leather but it is not cheap at all"
GERMAN = "die Stiefel sind schön und das Leder ist nicht billig aber sie halten mit der Sohle für den Acker"
ROWS = 120


def sentences(words: str = ENGLISH, rows: int = ROWS, seed: int = 0) -> list[str]:
    """Returns different sentences of 8 to 30 words."""
    draw = random.Random(seed)
    return [f"{' '.join(draw.choices(words.split(), k=draw.randint(8, 30)))} {number}" for number in range(rows)]


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ",", **how: Any) -> Path:
    with path.open("w", newline="", **how) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def json_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def customers(folder: Path) -> Path:
    rows = [[n, f"2024-01-{n % 28 + 1:02}", text, n % 5 + 1] for n, text in enumerate(sentences(GERMAN))]
    return table(folder / "Kunden 2024.csv", ["ID", "Datum", "Review Text", "Rating"], rows)


def ratings(folder: Path) -> Path:
    rows = [[n, text, ("5", "5.0", "1", "1.0", "five")[n % 5]] for n, text in enumerate(sentences())]
    return table(folder / "ratings.csv", ["ID", "Review Text", "Rating"], rows, encoding="utf-8-sig")


def several_labels(folder: Path) -> Path:
    labels = [["red"], ["big", "red"], ["big"], ["cheap", "red"], []]
    return json_lines(
        folder / "labels.jsonl", ({"body": text, "tags": labels[n % 5]} for n, text in enumerate(sentences()))
    )


def separated_labels(folder: Path) -> Path:
    labels = ["red", "big|red", "big", "cheap|red", "big|cheap"]
    return table(folder / "tags.csv", ["text", "tags"], ([text, labels[n % 5]] for n, text in enumerate(sentences())))


def prices(folder: Path) -> Path:
    rows = ([text, f"{n * 0.37 + 1:.2f}"] for n, text in enumerate(sentences()))
    return table(folder / "prices.tsv", ["description", "price"], rows, "\t")


def questions(folder: Path) -> Path:
    paragraphs = []
    for number, context in enumerate(sentences(rows=30)):
        answer = {"text": "boots", "answer_start": context.index("boots")} if "boots" in context else None
        asked = {"id": str(number), "question": "What holds for years?", "answers": [answer] if answer else []}
        paragraphs.append({"context": context, "qas": [asked]})
    path = folder / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "boots", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def pairs(folder: Path) -> Path:
    return table(folder / "memory.csv", ["EN", "Deutsch"], zip(sentences(), sentences(GERMAN), strict=True))


def aligned(folder: Path) -> Path:
    for language, words in (("en", ENGLISH), ("de", GERMAN)):
        (folder / f"corpus.{language}").write_text("\n".join(sentences(words)) + "\n", encoding="utf-8")
    return folder / "corpus.{en,de}"


def photos(folder: Path) -> Path:
    for number in range(12):
        place = folder / "photos" / ("boot" if number % 2 else "glove")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"IMG_{number}.JPG").write_bytes(image(noise(32, 32, 3, seed=number), "JPEG"))
    return folder / "photos"


def calls(folder: Path) -> Path:
    for number in range(12):
        (folder / f"call-{number}.wav").write_bytes(audio(tone(0.4, frequency=200 + 20 * number)))
    rows = [[f"call-{number}.wav", ("complaint", "order")[number % 2]] for number in range(12)]
    return table(folder / "calls.csv", ["recording", "topic"], rows)


def prose(folder: Path) -> Path:
    (folder / "prose.txt").write_text("\n".join(sentences()) + "\n", encoding="utf-8")
    return folder / "prose.txt"


FILES: dict[str, Callable[[Path], Path]] = {
    writer.__name__: writer
    for writer in (
        *(customers, ratings, several_labels, separated_labels, prices),
        *(questions, pairs, aligned, photos, calls, prose),
    )
}

"""Files in the state in which users have them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import audio_files
import image_files

GOOD = ("sturdy", "comfortable", "schön", "excellent", "light")
BAD = ("torn", "leaking", "schäbig", "uncomfortable", "broken")
THINGS = ("boots", "gloves", "a tent", "the jacket", "a lamp", "socks", "Schuhe", "a rope")
PAIRS = [("a red house", "ein rotes Haus"), ("the green tree", "der grüne Baum"), ("a dog runs", "ein Hund läuft"),
         ("the cat sleeps", "die Katze schläft"), ("two people talk", "zwei Leute reden")]  # fmt: skip
FORMS: Mapping[str, Mapping[str, Any]] = {
    "comma": {"delimiter": ",", "encoding": "utf-8"},
    "semicolon": {"delimiter": ";", "encoding": "utf-8"},
    "tab": {"delimiter": "\t", "encoding": "utf-8"},
    "pipe": {"delimiter": "|", "encoding": "utf-8"},
    "bom": {"delimiter": ";", "encoding": "utf-8-sig"},
    "utf16": {"delimiter": "\t", "encoding": "utf-16"},
}
"""Forms of a CSV file that are recognised."""


def reviews(count: int = 60) -> list[dict[str, str]]:
    """Returns reviews whose ratings were written by hand and by pandas, with a duplicate and with quotes in texts."""
    rows = []
    for number in range(count):
        good = number % 2
        words = (GOOD if good else BAD)[number // 2 % 5]
        text = f'{THINGS[number % 8]} is "{words}", number {number}; really'
        rating = ("4", "5.0")[number % 3 == 0] if good else ("1", "1.0")[number % 3 == 0]
        rows.append({"ID": f"R{number:03}", "Date": "2026-03-01", "Review Text": text, "Rating": rating})
    return [*rows, rows[7] | {"ID": "R900"}]


def write_csv(file: Path, rows: Sequence[Mapping[str, str]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    file.write_bytes(text.getvalue().encode(encoding))
    return file


def write_excel(file: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.append(list(rows[0]))
    for row in rows:
        sheet.append([float(value) if name == "Rating" else value for name, value in row.items()])
    book.save(file)
    return file


def write_photos(folder: Path, classes: Sequence[str] = ("boot", "glove")) -> Path:
    """Writes photos as a phone and a computer leave them: upper-case endings, hidden files and system files."""
    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            image = image_files.noise(40, 30, 3, seed=100 * place + number)
            (folder / name / f"IMG_{number:04}.JPG").write_bytes(image_files.encoded(image, "JPEG"))
        (folder / name / "Thumbs.db").write_bytes(b"\0")
        (folder / name / ".DS_Store").write_bytes(b"\0")
    return folder


def write_calls(folder: Path) -> Path:
    """Writes recordings of two kinds."""
    for place, name in enumerate(("complaint", "order")):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            wave = audio_files.tone(0.5, frequency=300.0 + 400 * place + 5 * number)
            (folder / name / f"call {number}.wav").write_bytes(audio_files.encoded(wave))
    return folder


def write_squad(file: Path) -> Path:
    """Writes questions about fields in SQuAD's format, several for each paragraph."""
    articles = []
    for number in range(8):
        context = f"Field {number} grows maize. It was sown in May and is watered with {10 + number} litres each day."
        answers = {
            "What grows": "maize",
            "When was it sown": "May",
            "How much water does it get": f"{10 + number} litres",
        }
        questions = [
            {
                "id": f"{number}-{place}",
                "question": f"{question} on field {number}?",
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
            for place, (question, answer) in enumerate(answers.items())
        ]
        articles.append({"title": f"Field {number}", "paragraphs": [{"context": context, "qas": questions}]})
    file.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    return file


def sentence_pairs(count: int = 40) -> list[tuple[str, str]]:
    return [(f"{en} {number}", f"{de} {number}") for number in range(count) for en, de in [PAIRS[number % 5]]]


def write_tmx(file: Path) -> Path:
    """Writes a translation memory with inline tags."""
    pair = '<tu><tuv xml:lang="en-US"><seg>{}<ph/></seg></tuv><tuv xml:lang="de-DE"><seg>{}</seg></tuv></tu>'
    units = "".join(pair.format(escape(en), escape(de)) for en, de in sentence_pairs())
    head = '<header creationtool="x" segtype="sentence" srclang="en-US" adminlang="en" datatype="plaintext"/>'
    text = f'<?xml version="1.0"?><tmx version="1.4">{head}<body>{units}</body></tmx>'
    file.write_text(text, encoding="utf-8")
    return file


def write_plain_tsv(file: Path) -> Path:
    """Writes sentence pairs as corpora are: without a header, and with quotes that mean nothing."""
    lines = [f'"{en}\t{de}' if number % 9 == 4 else f"{en}\t{de}" for number, (en, de) in enumerate(sentence_pairs())]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file

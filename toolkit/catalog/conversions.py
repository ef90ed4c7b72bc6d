"""From the files as they are published to the files that recipes read: one function per dataset.

Each reads the source files in `raw` and writes the dataset into `target`, an empty folder. What comes out depends on
nothing but the source files: shuffling is seeded.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")

MAX_TEXT_BYTES = 2**28
"""Largest text that is unpacked: far more than any of the datasets has."""


def agxqa(raw: Path, target: Path) -> None:
    """Deals the documents out at random: 70 % to train on, 15 % to validate, the rest is left aside."""
    (source,) = raw.glob("*.json")
    documents = json.loads(source.read_text(encoding="utf-8"))["data"]
    train, validation = _cut(documents, 0.7, 0.85)
    for name, part in (("train", train), ("validation", validation)):
        text = json.dumps({"version": "1.1", "data": part}, ensure_ascii=False)
        (target / f"{name}.json").write_bytes(text.encode())


def customer_reviews(raw: Path, target: Path) -> None:
    """Joins both sources, without duplicates, and deals them out: 75 % to train on, 12 % to validate."""
    first = (raw / "custrev.all").read_text(encoding="latin-1").split("\n")
    second = (raw / "amazon_cells_labelled.txt").read_text(encoding="utf-8").split("\n")
    labelled = [line.partition(" ")[::-2] for line in first if line.strip()]
    labelled += [line.rpartition("\t")[::2] for line in second if line.strip()]
    classes = {"0": "negative", "1": "positive"}
    rows = sorted({(text.strip(), classes[label.strip()]) for text, label in labelled})
    train, validation = _cut(rows, 0.75, 0.87)
    for name, part in (("train", train), ("validation", validation)):
        with (target / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])


def multi30k(raw: Path, target: Path) -> None:
    """Pairs the lines of both languages."""
    for name, part in (("train", "train"), ("validation", "val")):
        english, german = (_unpacked_lines(raw / f"{part}.{language}.gz") for language in ("en", "de"))
        pairs = [{"translation": {"en": en, "de": de}} for en, de in zip(english, german, strict=True)]
        text = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
        (target / f"{name}.jsonl").write_bytes(text.encode())


CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
"""Classes of Fashion-MNIST, in the order of their numbers."""
CELL, COLUMNS, ROWS = 28, 30, 3
"""Of the sprite: pixels of a cell's side, cells in a row, rows of each class."""


def fashion(raw: Path, target: Path) -> None:
    """Cuts images out of the sprite, whose rows show one class after the other."""
    from PIL import Image

    with Image.open(raw / "fashion-mnist-sprite.png") as opened:
        sprite = opened.convert("L")
    expected = (COLUMNS * CELL, len(CLASSES) * ROWS * CELL)
    if sprite.size != expected:
        raise ValueError(f"the sprite is {sprite.width}x{sprite.height} pixels, expected {expected[0]}x{expected[1]}")
    for number, name in enumerate(CLASSES):
        cells = [(column, number * ROWS + row) for row in range(ROWS) for column in range(COLUMNS)]
        random.Random(number).shuffle(cells)
        for index, (column, row) in enumerate(cells[:75]):
            folder = target / ("train" if index < 60 else "validation") / name
            folder.mkdir(parents=True, exist_ok=True)
            left, top = column * CELL, row * CELL
            sprite.crop((left, top, left + CELL, top + CELL)).save(folder / f"{index:03d}.png", optimize=True)


SPEAKERS = {"train": ("george", "jackson", "lucas", "nicolas"), "validation": ("theo",)}
CLIPS = {"train": range(0, 50, 2), "validation": range(20)}
"""Of the spoken digits: who speaks in each part, and which clips of each digit are taken."""


def spoken_digits(raw: Path, target: Path) -> None:
    """Takes clips out of the archive; the speaker of the validation part is not heard in training."""
    import tarfile

    wanted = {
        f"{digit}_{speaker}_{clip}.wav": target / part / str(digit) / f"{speaker}_{clip}.wav"
        for part, speakers in SPEAKERS.items()
        for digit in range(10)
        for speaker in speakers
        for clip in CLIPS[part]
    }
    with tarfile.open(raw / "free-spoken-digit-dataset.tar.gz", "r:gz") as archive:
        # Only the content of plain files is read, and where it goes is ours to say: no path of the archive is followed.
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            if name not in wanted or not member.isfile() or folder.rpartition("/")[2] != "recordings":
                continue
            content = archive.extractfile(member)
            assert content is not None  # it is a plain file
            path = wanted.pop(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    if wanted:
        raise ValueError(f"{len(wanted)} clips are not in the archive, for instance recordings/{min(wanted)}")


def wikitext2(raw: Path, target: Path) -> None:
    """Trains on the validation text, and validates on the test text up to a heading after its middle."""
    (target / "train.txt").write_bytes((raw / "valid.txt").read_bytes())
    text = (raw / "test.txt").read_bytes().decode()
    (target / "validation.txt").write_bytes(text[: text.index("\n = ", len(text) // 2)].encode())


def _cut(rows: list[Row], first: float, second: float) -> tuple[list[Row], list[Row]]:
    """Shuffles rows with seed 0; returns those up to a first and from there to a second part of their number."""
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    start, end = int(first * len(shuffled)), int(second * len(shuffled))
    return shuffled[:start], shuffled[start:end]


def _unpacked_lines(path: Path) -> list[str]:
    with gzip.open(path) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise ValueError(f"{path.name} unpacks to more than {MAX_TEXT_BYTES:,} bytes")
    return [line.strip() for line in content.decode().removesuffix("\n").split("\n")]

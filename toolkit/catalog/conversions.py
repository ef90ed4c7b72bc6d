"""Converts published source files to the files that recipes read: one function per dataset.

Each function reads the source files in `raw` and writes the dataset into `target`, an empty folder. The result depends
on the source files alone: shuffling is seeded.
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
"""Largest text that is unpacked, far above that of every dataset."""


def agxqa(raw: Path, target: Path) -> None:
    """Splits the documents at random: 70 % for training, 15 % for validation; the rest is not used."""
    (source,) = raw.glob("*.json")
    documents = json.loads(source.read_text(encoding="utf-8"))["data"]
    train, validation = _cut(documents, 0.7, 0.85)
    for name, part in (("train", train), ("validation", validation)):
        text = json.dumps({"version": "1.1", "data": part}, ensure_ascii=False)
        (target / f"{name}.json").write_bytes(text.encode())


def customer_reviews(raw: Path, target: Path) -> None:
    """Joins both sources without duplicates and splits them: 75 % for training, 12 % for validation."""
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
"""Layout of the sprite: side of a cell in pixels, cells per row, rows per class."""


def fashion(raw: Path, target: Path) -> None:
    """Crops the images from the sprite, in which the rows of each class follow those of the previous one.

    Raises:
        ValueError: if the sprite has an unexpected size.
    """
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
"""Split of the spoken digits: the speakers of each part, and the clips taken of each digit."""


def spoken_digits(raw: Path, target: Path) -> None:
    """Extracts clips from the archive; the speaker of the validation part has no clips in training.

    Raises:
        ValueError: if clips are missing in the archive.
    """
    import tarfile

    wanted = {
        f"{digit}_{speaker}_{clip}.wav": target / part / str(digit) / f"{speaker}_{clip}.wav"
        for part, speakers in SPEAKERS.items()
        for digit in range(10)
        for speaker in speakers
        for clip in CLIPS[part]
    }
    with tarfile.open(raw / "free-spoken-digit-dataset.tar.gz", "r:gz") as archive:
        # Only the content of plain files is read, and we choose the target: no path of the archive is used.
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
    """Uses the validation text for training, and the test text up to the first heading after its middle to validate."""
    (target / "train.txt").write_bytes((raw / "valid.txt").read_bytes())
    text = (raw / "test.txt").read_bytes().decode()
    (target / "validation.txt").write_bytes(text[: text.index("\n = ", len(text) // 2)].encode())


def _cut(rows: list[Row], first: float, second: float) -> tuple[list[Row], list[Row]]:
    """Shuffles rows with seed 0; returns those before the fraction `first`, and those from it to `second`."""
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

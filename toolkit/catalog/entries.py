"""The public datasets that the shipped configurations use, and their sources.

This folder is directly above `base` and below the settings: messages about a missing data file need the command that
downloads it.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
    """Crops the images from the sprite, in which the rows of each class follow those of the previous one."""
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
    """Extracts clips from the archive; the speaker of the validation part has no clips in training."""
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


DEFAULT_FOLDER = "data"
"""Folder of the datasets, in which the shipped configurations expect them."""


@dataclass(frozen=True)
class Source:
    """A file to download; `file` is its name for the conversion and in a local mirror."""

    url: str
    file: str


@dataclass(frozen=True)
class CatalogEntry:
    """A public dataset, and how it is converted to files that a recipe reads."""

    summary: str  # one-line description, for the help
    licence: str  # its licence
    homepage: str  # address of its description
    sources: tuple[Source, ...]  # the files to download
    convert: Callable[[Path, Path], None]  # reads the sources in a folder, and writes the dataset into another
    sha256: Mapping[str, str]
    """Checksum (`toolkit.catalog.get.digest`) of each file or folder on which the recipes' figures were measured."""


def _github(repository: str, revision: str, path: str) -> Source:
    return Source(f"https://raw.githubusercontent.com/{repository}/{revision}/{path}", path.rpartition("/")[2])


CATALOG: dict[str, CatalogEntry] = {
    "agxqa": CatalogEntry(
        summary="questions about farming, answered from a text: 392 for training, 71 for validation (English)",
        licence="Apache-2.0",
        homepage="https://github.com/MSU-CECO/agxqa_benchmark_v1",
        sources=(
            _github(
                "MSU-CECO/agxqa_benchmark_v1",
                "d378a0c146c37fac582f683ae517d6ee8c651986",
                "data/for_qa_data_annotated/annotations_part_B_Nov03_Dec23_2023.json",
            ),
        ),
        convert=agxqa,
        sha256={
            "train.json": "b55c6f2873c0735026c30dcd6b27e7771cbe8892c75cbdc07961110c8f3929e2",
            "validation.json": "801bf13ecc37728af9f95398233a0a3ff3beda8125ad1de5b30ae2730b882b99",
        },
    ),
    "customer_reviews": CatalogEntry(
        summary="sentences of product reviews, positive or negative: 3,567 for training, 570 for validation (English)",
        licence="research use (Customer Review Data of Hu and Liu; Sentiment Labelled Sentences of UCI)",
        homepage="https://www.cs.uic.edu/~liub/FBS/sentiment-analysis.html",
        sources=(
            _github("harvardnlp/sent-conv-torch", "656a7ea29de3409aca87bb17935cf93c537527fa", "data/custrev.all"),
            _github(
                "stein-kim/sentiment_analysis",
                "6850d5392de0703fb7ec7ea9a81b37d8098e4353",
                "data/amazon_cells_labelled.txt",
            ),
        ),
        convert=customer_reviews,
        sha256={
            "train.csv": "46dd4b2aa5ab64f4bda851e100cbc76de84850bb0eec50c5cdb34e99b64a0573",
            "validation.csv": "d094eec4fcf4102ae221f4d07e2b19c9b83d3f8e3df2b350812191a0ed4acfbf",
        },
    ),
    "multi30k": CatalogEntry(
        summary="image captions in English and German: 29,000 pairs for training, 1,014 for validation",
        licence="research use (captions of Flickr images)",
        homepage="https://github.com/multi30k/dataset",
        # The repository has had two versions of one of these files, and it is not known which of them the figures were
        # measured on. The current one is downloaded; the checksums of the result tell whether it is the same.
        sources=tuple(
            _github("multi30k/dataset", "master", f"data/task1/raw/{part}.{language}.gz")
            for part in ("train", "val")
            for language in ("en", "de")
        ),
        convert=multi30k,
        sha256={
            "train.jsonl": "2bd00e69e0fff6ab4e20fb17bf8f0362c210a2ecf2188de6e20d99508ba633ab",
            "validation.jsonl": "968d147fe23ad5d4f6bd80c5666301dc355b411b3e6fda8ffdcfc1551a5a5a07",
        },
    ),
    "fashion": CatalogEntry(
        summary="Fashion-MNIST, 28x28 greyscale images of 10 classes: 600 for training, 150 for validation",
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        sources=(
            _github(
                "zalandoresearch/fashion-mnist",
                "068f28faedbf281578743d682543a8fb9f15f4a0",
                "doc/img/fashion-mnist-sprite.png",
            ),
        ),
        convert=fashion,
        sha256={
            "train": "30e97985018dbd79c69ed7beb3ae9148838408f62434eb5cf32ba88a3269ffc7",
            "validation": "7bbc14423e5e3e1bdb966d26d17c2b95f21c9a2e78979d99a770b3a9baa2fe99",
        },
    ),
    "spoken_digits": CatalogEntry(
        summary="Free Spoken Digit Dataset: 1,000 clips of four speakers for training, 200 of another for validation",
        licence="CC BY-SA 4.0",
        homepage="https://github.com/Jakobovski/free-spoken-digit-dataset",
        sources=(
            # The archive of a commit: GitHub may pack it differently one day, so only the result is compared.
            Source(
                "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/"
                "1306d2c6da002dfb2fd1f113d8596d801648a085.tar.gz",
                "free-spoken-digit-dataset.tar.gz",
            ),
        ),
        convert=spoken_digits,
        sha256={
            "train": "e4e66e5b9aa637c1f47ef4d4557a6fec7f52e9273664559c734f15c42d48dbb4",
            "validation": "4cadbfedf62425786b1262355ef879245baf1bf648cc5f39277704797bde97e3",
        },
    ),
    "wikitext2": CatalogEntry(
        summary="WikiText-2, the validation text (1.1 MB) for training, half of the test text for validation (English)",
        licence="CC BY-SA 3.0",
        homepage="https://github.com/pytorch/examples/tree/main/word_language_model",
        sources=(
            _github(
                "pytorch/examples",
                "37ce9402ff0cae48d764d7788810fd2ed8238b25",
                "word_language_model/data/wikitext-2/valid.txt",
            ),
            _github(
                "pytorch/examples",
                "cada773327ba94a5970e0d57c17c847d69dbbb8f",
                "word_language_model/data/wikitext-2/test.txt",
            ),
        ),
        convert=wikitext2,
        sha256={
            "train.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            "validation.txt": "e7f15e748d7b9b2452619a663ffd7943df13ec8101fc2162adf85921fda92123",
        },
    ),
}
"""The datasets by name, which is also the name of the folder."""


def command_for(path: str | Path) -> str | None:
    """Returns the command that downloads a file in `.../data/<name>`, or None if the catalog has no such dataset."""
    parts = Path(path).parts
    for place, (folder, name) in enumerate(pairwise(parts)):
        if folder == DEFAULT_FOLDER and name in CATALOG:
            where = Path(*parts[: place + 1])
            return f"toolkit data get {name}" + ("" if where == Path(DEFAULT_FOLDER) else f" --output-dir {where}")
    return None

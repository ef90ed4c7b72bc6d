"""The public datasets that the shipped configurations use, and their sources.

This folder is directly above `base` and below the settings: messages about a missing data file need the command that
downloads it.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypeVar

Row = TypeVar("Row")

MAX_FILE_BYTES = 2**28
"""Largest file that is unpacked, far above that of every dataset."""


def agxqa(raw: Path, target: Path) -> None:
    """Splits the documents at random: 70 % for training, 15 % for validation; pairs questions with texts of a part."""
    (source,) = raw.glob("*.json")
    documents = json.loads(source.read_text(encoding="utf-8"))["data"]
    for name, part in _cut(documents, 0.7, 0.85).items():
        text = json.dumps({"version": "1.1", "data": part}, ensure_ascii=False)
        (target / f"{name}.json").write_bytes(text.encode())
        _write_csv(target / f"relevance_{name}.csv", [("question", "context", "label"), *_relevance(part)])


NEGATIVES = 3
"""Texts without the answer for each question."""


def _relevance(documents: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yields each question with its texts, and with random others in which it is not asked (seed 0)."""
    asked: dict[str, list[str]] = {}
    texts: list[str] = []
    for paragraph in (paragraph for document in documents for paragraph in document["paragraphs"]):
        texts.append(paragraph["context"].strip())
        for question in paragraph["qas"]:
            asked.setdefault(question["question"].strip(), []).append(texts[-1])
    generator = random.Random(0)
    for question, right in asked.items():
        others = [text for text in dict.fromkeys(texts) if text not in right]
        wrong = generator.sample(others, min(NEGATIVES, len(others)))
        yield from ((question, text, "relevant") for text in dict.fromkeys(right))
        yield from ((question, text, "not relevant") for text in wrong)


def customer_reviews(raw: Path, target: Path) -> None:
    """Joins both sources without duplicates and splits them: 75 % for training, 12 % for validation."""
    first = (raw / "custrev.all").read_text(encoding="latin-1").split("\n")
    second = (raw / "amazon_cells_labelled.txt").read_text(encoding="utf-8").split("\n")
    labelled = [line.partition(" ")[::-2] for line in first if line.strip()]
    labelled += [line.rpartition("\t")[::2] for line in second if line.strip()]
    classes = {"0": "negative", "1": "positive"}
    rows = sorted({(text.strip(), classes[label.strip()]) for text, label in labelled})
    for name, part in _cut(rows, 0.75, 0.87).items():
        _write_csv(target / f"{name}.csv", [("text", "label"), *part])


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


CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""Classes of CIFAR-10, in the order of their numbers."""
BATCHES = {**{f"data_batch_{number}": "train" for number in range(1, 6)}, "test_batch": "test"}
"""Files of CIFAR-10, and the published part of each."""


def cifar10(raw: Path, target: Path) -> None:
    """Converts rows of a class and the red, green and blue pixels; every tenth training image is for validation."""
    import tarfile

    from PIL import Image

    plane, counts = 32 * 32, Counter[tuple[str, str]]()
    with tarfile.open(raw / "cifar-10-binary.tar.gz", "r:gz") as archive:
        for batch, part in BATCHES.items():
            content = _unpacked(archive.extractfile(f"cifar-10-batches-bin/{batch}.bin"), batch)
            if len(content) % (1 + 3 * plane):
                raise ValueError(f"{batch} has {len(content):,} bytes, expected {1 + 3 * plane:,} for each image")
            for start in range(0, len(content), 1 + 3 * plane):
                name = CIFAR_CLASSES[content[start]]
                counts[part, name] += 1
                number = counts[part, name]
                folder = target / ("validation" if part == "train" and number % 10 == 0 else part) / name
                folder.mkdir(parents=True, exist_ok=True)
                colours = (content[start + 1 + k * plane : start + 1 + (k + 1) * plane] for k in range(3))
                image = Image.merge("RGB", [Image.frombytes("L", (32, 32), colour) for colour in colours])
                image.save(folder / f"{number:04d}.png")


SPEAKERS = {"train": ("george", "jackson", "lucas", "nicolas"), "validation": ("theo",), "test": ("theo",)}
CLIPS = {"train": range(6, 50, 2), "validation": range(5, 20), "test": range(5)}
"""Split of the spoken digits: the speakers of each part, and the clips taken of each digit. The published test clips,
those below 5, are in no other part."""


def spoken_digits(raw: Path, target: Path) -> None:
    """Extracts clips from the archive; the speaker of the other parts has no clips in training."""
    wanted = {
        f"{digit}_{speaker}_{clip}.wav": target / part / str(digit) / f"{speaker}_{clip}.wav"
        for part, speakers in SPEAKERS.items()
        for digit in range(10)
        for speaker in speakers
        for clip in CLIPS[part]
    }
    for name, content in _members(raw / "free-spoken-digit-dataset.tar.gz", wanted.__contains__, "recordings"):
        path = wanted.pop(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if wanted:
        raise ValueError(f"{len(wanted)} clips are not in the archive, for instance recordings/{min(wanted)}")


READERS = ("train",) * 4 + ("validation", "test")
"""Parts of LibriSpeech's speakers, in the order of their numbers; the seventh is in the first part again."""


def librispeech_dev_clean(raw: Path, target: Path) -> None:
    """Extracts the recordings, and deals whole speakers to training, validation and test."""
    texts: dict[str, str] = {}
    files: dict[str, str] = {}
    for name, content in _members(raw / "dev-clean.tar.gz", re.compile(r"\d+(-[^.]*)?\.(flac|trans\.txt)").fullmatch):
        key, _, suffix = name.partition(".")
        if suffix == "trans.txt":
            lines = (line.partition(" ") for line in content.decode().splitlines())
            texts |= {each: text.strip() for each, _, text in lines}
        else:
            speaker = key.partition("-")[0]
            files[key] = f"{speaker}/{key}.flac"
            (target / speaker).mkdir(exist_ok=True)
            (target / files[key]).write_bytes(content)
    alone = sorted(texts.keys() ^ files.keys())
    if alone or not files:
        raise ValueError(f"{len(files)} recordings and {len(texts)} transcripts; alone are {', '.join(alone[:3])}")
    speakers = sorted({int(key.partition("-")[0]) for key in files})
    parts = {number: READERS[place % len(READERS)] for place, number in enumerate(speakers)}
    for part in dict.fromkeys(READERS):
        named = ((key, key.partition("-")[0]) for key in sorted(files))
        rows = [(files[key], texts[key], reader) for key, reader in named if parts[int(reader)] == part]
        _write_csv(target / f"{part}.csv", [("audio", "text", "speaker"), *rows])


SICK = {"train": "SICK_train.txt", "validation": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
"""Files of SICK, by the part that each is published for."""


TREC_QA = {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"}
"""Likewise of TREC QA."""


def as_published(parts: Mapping[str, str], header: str, raw: Path, target: Path) -> None:
    """Copies published tables, which must begin with a header, under the names with which they are used."""
    for name, file in parts.items():
        content = (raw / file).read_bytes()
        if not content.startswith(header.encode()):
            raise ValueError(f"{file} does not begin with the names of the columns")
        (target / f"{name}{'.tsv' if file.endswith('.txt') else '.csv'}").write_bytes(content)


def wikitext2(raw: Path, target: Path) -> None:
    """Extracts the three published parts."""
    import zipfile

    with zipfile.ZipFile(raw / "wikitext-2-raw-v1.zip") as archive:
        for name, part in (("train", "train"), ("validation", "valid"), ("test", "test")):
            with archive.open(f"wikitext-2-raw/wiki.{part}.raw") as file:
                (target / f"{name}.txt").write_bytes(_unpacked(file, file.name))


def _cut(rows: list[Row], first: float, second: float) -> dict[str, list[Row]]:
    """Shuffles rows with seed 0; trains on those before the fraction `first`, validates on those up to `second`."""
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    start, end = int(first * len(shuffled)), int(second * len(shuffled))
    return {"train": shuffled[:start], "validation": shuffled[start:end]}


def _write_csv(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def _members(archive: Path, is_wanted: Callable[[str], Any], folder: str = "") -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of the plain files that are wanted by name, and are in a `folder` if it is given.

    Where they are written is the caller's choice: no path of the archive is used.
    """
    import tarfile

    with tarfile.open(archive, "r:gz") as opened:
        for member in opened:
            *_, parent, name = f"/{member.name}".split("/")
            if member.isfile() and is_wanted(name) and folder in ("", parent):
                yield name, _unpacked(opened.extractfile(member), name)


def _unpacked_lines(path: Path) -> list[str]:
    with gzip.open(path) as file:
        content = _unpacked(file, path.name)
    return [line.strip() for line in content.decode().removesuffix("\n").split("\n")]


def _unpacked(file: IO[bytes] | gzip.GzipFile | None, name: str) -> bytes:
    """Reads a file of an archive, unless it is none or too large."""
    content = file.read(MAX_FILE_BYTES + 1) if file else b""
    if not 0 < len(content) <= MAX_FILE_BYTES:
        raise ValueError(f"{name} is not a file, is empty, or unpacks to more than {MAX_FILE_BYTES:,} bytes")
    return content


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
    """Checksum (`toolkit.catalog.get.digest`) of each file or folder on which the recipes' figures were measured, or of
    a source, where nothing was measured."""


GITHUB = "https://raw.githubusercontent.com"
STS = f"{GITHUB}/brmson/dataset-sts/e1d3375f5b3bc24f21aa4e46f96eb379e9fc1081/data"


def _below(address: str, *paths: str) -> tuple[Source, ...]:
    return tuple(Source(f"{address}/{path}", path.rpartition("/")[2]) for path in paths)


CATALOG: dict[str, CatalogEntry] = {
    "agxqa": CatalogEntry(
        summary="questions about farming, answered from a text: 392 for training, 71 for validation (English); "
        "the same questions with texts that answer them or not, as pairs",
        licence="Apache-2.0",
        homepage="https://github.com/MSU-CECO/agxqa_benchmark_v1",
        sources=_below(
            f"{GITHUB}/MSU-CECO/agxqa_benchmark_v1/d378a0c146c37fac582f683ae517d6ee8c651986",
            "data/for_qa_data_annotated/annotations_part_B_Nov03_Dec23_2023.json",
        ),
        convert=agxqa,
        sha256={
            "train.json": "b55c6f2873c0735026c30dcd6b27e7771cbe8892c75cbdc07961110c8f3929e2",
            "validation.json": "801bf13ecc37728af9f95398233a0a3ff3beda8125ad1de5b30ae2730b882b99",
            "relevance_train.csv": "e9fe24bc0f5791eb6114468b8ed25a8816d6287e50679582b719b13c9647f355",
            "relevance_validation.csv": "ba4bcd9c01965b19b9fb23ea56a77ab6d871005c1f043a39eaaf5500b6fd3761",
        },
    ),
    "customer_reviews": CatalogEntry(
        summary="sentences of product reviews, positive or negative: 3,567 for training, 570 for validation (English)",
        licence="research use (Customer Review Data of Hu and Liu; Sentiment Labelled Sentences of UCI)",
        homepage="https://www.cs.uic.edu/~liub/FBS/sentiment-analysis.html",
        sources=(
            *_below(
                f"{GITHUB}/harvardnlp/sent-conv-torch/656a7ea29de3409aca87bb17935cf93c537527fa", "data/custrev.all"
            ),
            *_below(
                f"{GITHUB}/stein-kim/sentiment_analysis/6850d5392de0703fb7ec7ea9a81b37d8098e4353",
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
        sources=_below(
            f"{GITHUB}/multi30k/dataset/master/data/task1/raw", "train.en.gz", "train.de.gz", "val.en.gz", "val.de.gz"
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
        sources=_below(
            f"{GITHUB}/zalandoresearch/fashion-mnist/068f28faedbf281578743d682543a8fb9f15f4a0",
            "doc/img/fashion-mnist-sprite.png",
        ),
        convert=fashion,
        sha256={
            "train": "30e97985018dbd79c69ed7beb3ae9148838408f62434eb5cf32ba88a3269ffc7",
            "validation": "7bbc14423e5e3e1bdb966d26d17c2b95f21c9a2e78979d99a770b3a9baa2fe99",
        },
    ),
    "cifar10": CatalogEntry(
        summary="CIFAR-10, 32x32 colour images of 10 classes: 45,000 to train, 5,000 to validate, 10,000 to test",
        licence="none stated (cite Krizhevsky 2009)",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        sources=_below("https://www.cs.toronto.edu/~kriz", "cifar-10-binary.tar.gz"),
        convert=cifar10,
        sha256={"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
    "spoken_digits": CatalogEntry(
        summary="Free Spoken Digit Dataset: 880 clips for training, 150 of another speaker for validation, 50 to test",
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
            "train": "9c95eeb48fc01abfa3c54f6f120a0e090cd90195e677f4b09f751acdbddf17b4",
            "validation": "6cee8b4fc7b368a77fdf6be3a46f4753b703d5f66e153501e5821c6930b101a4",
            "test": "41930063d608b30cb72924a2118e6f8fbcdb1801360b622b7cfa05e297c025c6",
        },
    ),
    "librispeech_dev_clean": CatalogEntry(
        summary="LibriSpeech dev-clean, 5.4 hours read by 40 speakers, with transcripts: 28 for training, 6 for "
        "validation, 6 to test (English)",
        licence="CC BY 4.0",
        homepage="https://www.openslr.org/12",
        sources=_below("http://www.openslr.org/resources/12", "dev-clean.tar.gz"),
        convert=librispeech_dev_clean,
        sha256={"dev-clean.tar.gz": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3"},
    ),
    "sick": CatalogEntry(
        summary="SICK (SemEval 2014), pairs of sentences with entailment and relatedness, as published: 4,500 for "
        "training, 500 for validation, 4,927 to test (English)",
        licence="CC BY-NC-SA 3.0 (not for commercial use)",
        homepage="https://alt.qcri.org/semeval2014/task1/",
        sources=_below(f"{STS}/sts/sick2014", *SICK.values()),
        convert=partial(as_published, SICK, "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"),
        sha256={
            "train.tsv": "266cf8047149bd1d68138dd30439f3122bff30069740ac6705bb6197d9f1b48e",
            "validation.tsv": "5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56",
            "test.tsv": "2b8aa806658d6fc23c6824c83776c2d4fee7556000817b5ec0f982861413b7d0",
        },
    ),
    "trec_qa": CatalogEntry(
        summary="TREC QA (Wang et al. 2007), questions with sentences that answer them or not, as published: 4,718 "
        "rows for training, 1,148 for validation, and rows to test (English)",
        licence="for research",
        homepage="https://github.com/brmson/dataset-sts/tree/master/data/anssel/wang",
        sources=_below(f"{STS}/anssel/wang", *TREC_QA.values()),
        convert=partial(as_published, TREC_QA, "qtext,label,atext"),
        sha256={
            "train.csv": "b3398769dee040bceb5ca4ffe49eaa9096e71c9533432031f3bddfdb3dee7a8f",
            "validation.csv": "3c266ccaa633e929515bc8643a0615c05f64d2fb62b3a687d85ff7fabdf79a6a",
            "test.csv": "5aaf688f8c79a0eab96c77dcc8919e82006169712a799aa97343588000769288",
        },
    ),
    "wikitext2": CatalogEntry(
        summary="WikiText-2, raw text of Wikipedia as published: training, validation and test (English)",
        licence="CC BY-SA 3.0",
        homepage="https://huggingface.co/datasets/Salesforce/wikitext",
        sources=_below(
            "https://huggingface.co/datasets/ggml-org/ci/resolve/927b3642933080f1b0e811e2f916e14c292992f9",
            "wikitext-2-raw-v1.zip",
        ),
        convert=wikitext2,
        sha256={"wikitext-2-raw-v1.zip": "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"},
    ),
}
"""The datasets by name, which is also the name of the folder."""


def command_for(path: str | Path) -> str | None:
    """Returns the command that downloads a file in `.../data/<name>`, or None if the catalog has no such dataset."""
    parts = Path(path).parts
    for place, (folder, name) in enumerate(pairwise(parts)):
        if folder == DEFAULT_FOLDER and name in CATALOG:
            where = Path(*parts[: place + 1])
            return f"toolkit data get {name}" + ("" if where == Path(DEFAULT_FOLDER) else f" --output {where}")
    return None

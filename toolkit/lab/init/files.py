"""The files that belong to the one that the user named, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from toolkit.base.errors import DataError, InputError
from toolkit.base.files import expanded
from toolkit.config.messages import join
from toolkit.config.paths import ARCHIVES, HDF5, aligned_files, files_of
from toolkit.config.sections import DataConfig
from toolkit.data.media.files import COLUMN_OF
from toolkit.data.media.transcripts import FOLDERS, METADATA
from toolkit.data.readers import delimited
from toolkit.data.readers.encodings import likely_encoding, recognised_encoding, text_encoding
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import read_rows
from toolkit.data.table import ENTITY
from toolkit.lab.init.guesses import Guess
from toolkit.lab.init.profile import TEXT, Profile

_BINARY = (".parquet", ".xlsx", ".tmx", ".arrow", ".arrows", ".feather", *HDF5, *ARCHIVES)
_SAMPLE = 2**20
_NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?\s*")
_SENTENCE = 3
"""Number of words of a sentence, at least."""


def file_guesses(data: DataConfig) -> Iterator[Guess]:
    """Yields the guessed settings for reading the training file; raises DataError if the encoding is unknown."""
    source, reading = data.files("train_file")[0], Reading.of(data)
    file = expanded(files_of(source)[0])
    if file.is_dir() or file.suffix.lower() in _BINARY:
        return
    try:
        encoding = text_encoding(file, reading.encoding)
        why = "recognised"
    except DataError:
        with file.open("rb") as opened:
            likely = likely_encoding(opened.read(_SAMPLE))
        if reading.encoding is not None or likely is None:
            raise
        encoding, why = likely, "not UTF-8, and this fits its bytes; look at the accents in `toolkit data show`"
    if recognised_encoding(encoding, reading.encoding):
        yield Guess("data.encoding", encoding, why)
    if file.suffix.lower() in delimited.USUAL:
        found = delimited.recognise(file, replace(reading, encoding=encoding))
        rows = islice(read_rows(source, replace(found, header=False)), _ROWS)
        first, *others = ([str(cell) for cell in (row.values or {}).values()] for row in rows)
        again = [
            cell for place, cell in enumerate(first) if sum(row[place : place + 1] == [cell] for row in others) > 1
        ]
        if again or _has_no_names(first):
            what = f"{again[0]!r}, a value of later lines" if again else "texts or numbers"
            yield Guess("data.header", False, f"the first line has {what}, not names of columns")


_ROWS = 200
"""The first line is compared with that many others."""


def _has_no_names(cells: Sequence[str]) -> bool:
    """Returns whether the cells of a first line cannot be names: one is a number or a file, or all are sentences."""
    files = any(Path(cell).suffix.lower() in COLUMN_OF for cell in cells if len(cell.split()) == 1)
    return files or any(map(_NUMBER.fullmatch, cells)) or all(len(cell.split()) >= _SENTENCE for cell in cells)


LEAST_ENTITIES = 0.01
"""Smallest share of the texts with HTML entities, and more than one, that makes them a way of writing."""


def entity_guesses(profile: Profile, used: Collection[str]) -> Iterator[Guess]:
    """Yields whether HTML entities are decoded, if enough texts of the columns that are used have some."""
    columns = [column for name, column in profile.columns.items() if name in used and column.kind == TEXT]
    texts = [str(text) for column in columns for text in column.values]
    found = [match for text in texts if (match := re.search(ENTITY, text))]
    if len(found) > max(1, LEAST_ENTITIES * len(texts)):
        why = f"{len(found):,} of {len(texts):,} texts have HTML entities such as {found[0][0]}"
        yield Guess("data.unescape_html", True, why)


_NAMES = {
    "train_file": ("train", "training"),
    "validation_file": ("validation", "valid", "val", "dev", "eval"),
    "test_file": ("test",),
}


def split_files(source: str) -> list[Guess]:
    """Returns the settings of the files: `train...` and its neighbours `validation...` and `test...`, or one file."""
    path = expanded(source)
    if aligned_files(source) or not path.exists():
        return [Guess("data.train_file", source)]
    folder = path if path.is_dir() else path.parent
    present = {setting: _find(folder, names, path) for setting, names in _NAMES.items()}
    train = present["train_file"]
    whole = path.is_dir() or (path.name == METADATA and any((folder / each).is_dir() for each in FOLDERS))
    if whole and (folder / METADATA).is_file() and not (train and train.is_file()):
        return [Guess("data.train_file", str(folder), f"its {METADATA} is about all recordings in this folder")]
    if train is None or (path.is_file() and train != path):
        return [Guess("data.train_file", source)]
    found = {setting: str(each) for setting, each in present.items() if each is not None}
    if path.is_file():
        found["train_file"] = source
    return [
        Guess(f"data.{setting}", name, "" if name == source else f"found in {folder} by its name")
        for setting, name in found.items()
    ]


def name_of(source: str) -> str:
    """Returns a name for a run on a file or folder, its own or, for `train.csv`, that of its folder."""
    path = expanded(source).resolve()
    name = path.parent.name if path.stem in (*_NAMES["train_file"], Path(METADATA).stem) else path.stem
    return re.sub(r"[^\w-]+", "-", name).strip("-") or "data"


def _find(folder: Path, names: tuple[str, ...], like: Path) -> Path | None:
    """Returns the entry of a folder whose name is one of these words, else the only one that begins with one.

    A table comes before a folder of the same name, as it is about the files in there. If `like` is a file, entries have
    its format; if it is a folder, InputError is raised if several are as good and one is a file (not classes).
    """
    entries = sorted(each for each in folder.iterdir() if re.split(r"[^a-z]", each.stem.lower())[0] in names)
    if like.is_file():
        entries = [each for each in entries if each.suffix == like.suffix]
    exact = [each for each in entries if each.stem.lower() in names]
    best = [each for each in exact if each.is_file()] or exact or entries
    if len(best) > 1 and like.is_dir() and any(map(Path.is_file, best)):
        listed = join([each.name for each in best], "and")
        kind = "training" if "train" in names else names[0]
        named = "name a file for training, and others as data.validation_file and data.test_file"
        raise InputError(f"{folder}: {listed} could each hold the {kind} rows; {named}")
    return best[0] if len(best) == 1 else None

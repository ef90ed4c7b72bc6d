"""Digests of rows, which find equal inputs, labels and groups without holding the rows themselves."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import Row
from toolkit.api.task import Task
from toolkit.base.files import cached_while_unchanged
from toolkit.data.media.files import open_file

if TYPE_CHECKING:
    import datasets


_NUMBER = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.([0-9]+))?")
"""A number as spreadsheets write it; text such as `007`, `1e5` or `nan` is a name."""


def plain_number(text: str) -> str:
    """Returns a number in its shortest form (`5.0` becomes `5`), and any other text unchanged."""
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    sign, digits, fraction = number[1].replace("+", ""), number[2], (number[3] or "").rstrip("0")
    if fraction:
        return f"{sign}{digits}.{fraction}"
    return digits if digits == "0" else sign + digits


INPUTS, LABEL, GROUP = "_inputs", "_label", "_group"
"""Columns of the cache with the digests of a row, signed 64-bit integers."""
NO_GROUP = 0
"""The group of a row that has none."""


@dataclass(frozen=True)
class Keys:
    """Digests of the rows of a table, each `[rows]` int64; equal values have equal digests.

    Those of `inputs` are of everything that the task predicts from, and of files' contents; `groups` has `NO_GROUP` for
    rows without a value in the group column.
    """

    inputs: np.ndarray
    labels: np.ndarray
    groups: np.ndarray

    @classmethod
    def of_columns(cls, rows: datasets.Dataset) -> Keys:
        """Returns the digests in the columns of a cache."""
        table = rows.with_format("numpy", columns=[INPUTS, LABEL, GROUP])[:]
        return cls(table[INPUTS], table[LABEL], table[GROUP])

    def select(self, places: np.ndarray) -> Keys:
        """Returns the digests of the rows at the given places."""
        return Keys(self.inputs[places], self.labels[places], self.groups[places])

    def joined(self, other: Keys) -> Keys:
        """Returns these digests, followed by others."""
        pairs = zip((self.inputs, self.labels, self.groups), (other.inputs, other.labels, other.groups), strict=True)
        return Keys(*map(np.concatenate, pairs))


def row_keys(row: Row, task: Task, group: Any) -> dict[str, int]:
    """Returns the digests of a checked row, by column; `group` is its value in the group column, or None.

    Parts of one recording are a group unless the column makes another.
    """
    names = [name for name in row if name in task.columns]
    labels = [name for name in names if task.columns[name].label]
    inputs = [name for name in names if name not in labels and not task.columns[name].key]
    parts = task.inputs_of(row)
    labels += [name for name in inputs if name in parts]  # as a whole, with their inputs
    recordings = (row[name]["path"] for name in inputs if isinstance(row[name], Mapping) and "first" in row[name])
    return {
        INPUTS: _digest([_content(parts.get(name, row[name])) for name in inputs]),
        LABEL: _digest([row[name] for name in labels]),
        GROUP: _group_of(group) or _group_of(next(recordings, None)),
    }


def _group_of(value: Any) -> int:
    """Returns the digest of a group; equal numbers are one, and what tables hold for a missing value is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip():
        return NO_GROUP
    return _digest(plain_number(str(value).strip()))


def _digest(value: Any) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _content(value: Any) -> Any:
    """Returns the digest of a row's file with the part of it that is used, and any other value unchanged."""
    if not (isinstance(value, Mapping) and value.keys() >= {"path", "bytes", "name"}):
        return value
    digest = _digest_of(Path(value["path"])) if value["bytes"] is None else hashlib.sha256(value["bytes"]).hexdigest()
    return digest, value.get("first"), value.get("frames")


@cached_while_unchanged
def _digest_of(path: Path) -> str:
    """Returns the digest of a file or a part of an archive; rows may be many parts of one recording."""
    with open_file({"path": str(path), "bytes": None}) as file:
        return hashlib.sha256(file.read()).hexdigest()


def units(keys: Keys) -> np.ndarray | None:
    """Returns the number `[rows]` of each row's unit, in the order of first rows; None if each row is its own unit.

    A unit stays on one side of a split: rows with equal inputs, equal groups, and chains of both.
    """
    inputs = same = _numbered(keys.inputs)
    grouped = np.flatnonzero(keys.groups != NO_GROUP)
    groups = _numbered(keys.groups[grouped])
    while len(grouped):  # the least number spreads over equal groups and inputs until nothing changes
        before, same = same, same.copy()
        same[grouped] = _least(groups, same[grouped])
        same = _least(inputs, same)
        if np.array_equal(before, same):
            break
    found = _numbered(same)
    return None if len(np.unique(found)) == len(found) else found


def _numbered(values: np.ndarray) -> np.ndarray:
    """Returns the number of each value, in the order of their first occurrences."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _least(owners: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns for each element the least value of all elements with the same owner."""
    least = np.full(owners.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, owners, values)
    return least[owners]


def first_like(*parts: np.ndarray) -> np.ndarray:
    """Returns for each row the place of the first row that equals it in all `parts` (each `[rows]`), `[rows]`."""
    numbers = np.zeros(len(parts[0]), dtype=np.int64)
    for part in parts:
        numbers = _numbered(numbers * len(part) + _numbered(part))
    _, first = np.unique(numbers, return_index=True)
    return first[numbers]


_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {word: str(number) for number, word in enumerate(_WORDS)}
"""English words for small numbers."""
_IGNORED = re.compile(r"[\W_]+")


def near_equal(labels: Iterable[str]) -> list[list[str]]:
    """Returns the groups of labels that differ only in case, accents, blanks and punctuation, or as `five` and `5`.

    Labels without any letter are left alone, since `-1` and `1` are different numbers.
    """
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(_plain(label), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


RARE = 0.1
"""Largest number of rows of a misspelt label, as a share of those of the right one."""
MOST_COMPARED = 500


def misspelt(counts: Mapping[str, int]) -> dict[str, str]:
    """Returns rare labels that are one letter off a frequent one (or have two exchanged), with that one."""

    def shorter(label: str) -> set[str]:
        return {label[:place] + label[place + 1 :] for place in range(len(label))}

    words = {label: shorter(label) for label in counts if len(label) > 3 and not any(map(str.isdigit, label))}
    return {
        rare: common
        for rare, less in (words if len(words) <= MOST_COMPARED else {}).items()
        for common, other in words.items()
        if 0 < counts[rare] <= RARE * counts[common] and (rare in other or common in less or less & other)
    }


def _plain(label: str) -> str:
    if not any(character.isalpha() for character in label):
        return label
    plain = unicodedata.normalize("NFKD", label.casefold())
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    # Without any letter or digit, nothing is left to compare.
    plain = _IGNORED.sub("", plain) or label
    return NUMBERS.get(plain, plain)

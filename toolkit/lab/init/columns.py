"""How the columns of each kind of data are recognised."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from toolkit.config.sections import DataConfig
from toolkit.lab.init.languages import language_named, language_of
from toolkit.lab.init.profile import OBJECT, OBJECTS, TEXT, TEXTS, ColumnProfile, Profile

Columns = dict[str, str]
"""The file's columns by the recipe's names for them."""
Find = Callable[[Profile, Columns], Columns | None]
"""Returns the columns of a kind of data, given those that the user named; None if the file is of another kind."""
_TAG = re.compile(r"O|[BIESLU]-\S+")
_LEAST_CHARACTERS = 15
"""Smallest mean length of a text that no name gives away."""


@dataclass(frozen=True)
class Role:
    """A column that a kind of data needs.

    Args:
        name: the recipe's name for it.
        usual: usual names, each a lower-case word or several without anything between.
        fits: whether a column can have this role.
        rank: orders columns that fit and have no usual name, the best last; None if the name is required.
    """

    name: str
    usual: str
    fits: Callable[[ColumnProfile], bool]
    rank: Callable[[ColumnProfile], tuple[float, ...]] | None = None

    def named(self, column: ColumnProfile) -> int:
        """Returns how much a column's name means this role: 2 completely, 1 in part, 0 not."""
        words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column.name).lower())
        usual = {self.name, *self.usual.split()}
        return 2 if "".join(words) in usual else 1 if usual & set(words) else 0

    def choose(self, columns: Mapping[str, ColumnProfile]) -> str | None:
        """Returns the name of the column that fits best, or None."""
        fitting = [column for column in columns.values() if self.fits(column) and (self.rank or self.named(column))]
        rank = self.rank or (lambda column: ())
        best = max(fitting, key=lambda column: (self.named(column), rank(column)), default=None)
        return best.name if best else None


def roles(*needed: Role) -> Find:
    """Returns a function that finds a column for each role."""

    def find(profile: Profile, given: Columns) -> Columns | None:
        found = dict(given)
        for role in needed:
            free = {name: column for name, column in profile.columns.items() if name not in found.values()}
            if role.name not in found:
                best = role.choose(free)
                if best is None:
                    return None
                found[role.name] = best
        return found

    return find


def is_text(column: ColumnProfile) -> bool:
    """Whether a column holds texts, not names."""
    return column.kind == TEXT and column.mean_characters >= _LEAST_CHARACTERS


def is_answer(column: ColumnProfile) -> bool:
    """Whether a column holds SQuAD's answers, with their places in the context."""
    return column.kind == OBJECT and all({"text", "answer_start"} <= value.keys() for value in column.values)


def has_kind(kind: str) -> Callable[[ColumnProfile], bool]:
    """Returns a function that tells whether a column holds values of a kind."""
    return lambda column: column.kind == kind


def repeats(column: ColumnProfile) -> tuple[float, float]:
    """Returns whether few rows have no value (1 or 0), and how often a value occurs, on average.

    Rows without a label cannot be used, and a run stops if they are many.
    """
    rows = len(column.values) + column.empty
    return float(column.empty <= DataConfig.max_bad_rows * rows), len(column.values) / max(len(column.counts), 1)


def length(column: ColumnProfile) -> tuple[float]:
    """Returns the mean number of characters of a column's values."""
    return (column.mean_characters,)


def find_pair(profile: Profile, given: Columns) -> Columns | None:
    """Finds a mapping of languages, or two columns of text in different languages."""
    mappings = [column for column in profile.columns.values() if column.kind == OBJECT]
    for column in mappings:
        languages = list(column.values[0])
        if len(languages) >= 2 and all(map(language_named, languages)):
            return {"translation": column.name}
    texts = {name: column for name, column in profile.columns.items() if column.kind == TEXT}
    if {"source", "target"} <= given.keys():
        return given
    for source, target in permutations(texts, 2):
        pair = column_language(texts[source]), column_language(texts[target])
        if None not in pair and pair[0] != pair[1]:
            found = {"source": source, "target": target} | given
            if len(set(found.values())) == len(found):
                return found
    return None


def column_language(column: ColumnProfile) -> str | None:
    """Returns the code of a column's language: that of its texts or, if they are too short, that in its name."""
    return language_of(map(str, column.values[:200])) or language_named(column.name)


def is_chat(column: ColumnProfile) -> bool:
    """Whether a column holds conversations."""
    return column.kind == OBJECTS and all(
        {"role", "content"} <= turn.keys() for turns in column.values for turn in turns
    )


def is_tokens(column: ColumnProfile) -> bool:
    """Whether a column holds lists of texts."""
    return all(isinstance(value, list) and all(isinstance(each, str) for each in value) for value in column.values)


def is_tags(column: ColumnProfile) -> bool:
    """Whether a column holds lists of tags of entities."""
    return column.kind == TEXTS and all(_TAG.fullmatch(tag) for tags in column.values for tag in tags)


def find_plain_text(profile: Profile, given: Columns) -> Columns | None:
    """Finds the lines of a text file, or the column that the user named."""
    column = given.get("text", "text")
    is_plain = Path(profile.source).suffix.lower() == ".txt" or bool(given)
    return {"text": column} if is_plain and column in profile.columns else None

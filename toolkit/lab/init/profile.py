"""Profiles of columns from a sample of rows: types, distinct values, lengths; `toolkit.data.table` checks all rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cached_property
from math import isfinite
from pathlib import Path
from sys import float_info
from typing import Any

from toolkit.api.batch import BadRow
from toolkit.base.errors import DataError
from toolkit.base.files import sha256
from toolkit.config.templates import parts_of
from toolkit.data.media.files import SUFFIXES
from toolkit.data.readers.raw import RECOGNISED, RawRow, Reading
from toolkit.data.sources import read_rows, spread
from toolkit.data.values import parse_number, printed_list

SAMPLE_ROWS = 5000
"""Number of evenly spaced rows that a profile is made from."""

TEXT, WHOLE, NUMBER, BOOLEAN, DATE = "text", "whole numbers", "numbers", "true or false", "dates"
TEXTS, NUMBERS, OBJECTS, OBJECT = "lists of text", "lists of numbers", "lists of objects", "objects"
FILES = {kind: f"{kind} files" for kind in SUFFIXES}
MIXED, NOTHING = "mixed", "nothing"
PRINTED = (TEXT, WHOLE, NUMBER, BOOLEAN, DATE)  # kinds that a cell of a table can have
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}\b|\d{1,2}([./-])\d{1,2}\1\d{2,4}\b")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class ColumnProfile:
    """A column in a sample of rows."""

    name: str  # its name in the file
    values: Sequence[Any]  # its values that are not empty, in the order of the file
    empty: int  # number of rows without a value

    @cached_property
    def kind(self) -> str:
        """The type of the values: one of the names above; numbers may be written as text, as in CSV."""
        kinds = {_kind(value) for value in self.values}
        if kinds <= {WHOLE, NUMBER}:
            return NUMBER if NUMBER in kinds else WHOLE if kinds else NOTHING
        if kinds <= {TEXTS, NUMBERS, OBJECTS, NOTHING}:  # an empty list is a list of anything
            kinds.discard(NOTHING)
        if len(kinds) == 1:
            return kinds.pop()
        return TEXT if all(isinstance(value, str | int | float) for value in self.values) else MIXED

    @cached_property
    def counts(self) -> Counter[str]:
        """Number of rows by value, as text."""
        return Counter(str(value).strip() for value in self.values)

    @property
    def is_unique(self) -> bool:
        """Whether all values are different, as those of an id are."""
        return len(self.counts) == len(self.values)

    @cached_property
    def numbers(self) -> list[float]:
        """The values of a column of numbers."""
        return [float(value) for value in self.values] if self.kind in (WHOLE, NUMBER) else []

    @cached_property
    def lists(self) -> list[Sequence[Any] | Mapping[Any, Any]]:
        """The values of a column of lists or mappings that are printed as text; empty for others."""
        with suppress(BadRow):
            found = [printed_list(value) for value in self.values if isinstance(value, str)]
            if found and len(found) == len(self.values) and None not in found:
                return [each for each in found if each is not None]
        return []

    @cached_property
    def decimal(self) -> str | None:
        """The decimal separator of texts that are amounts (`14,52 €`); empty if none has a comma, None for others."""
        texts = self.kind == TEXT and not self.lists and all(isinstance(value, str) for value in self.values)
        for decimal in ("", ".", ",") if texts else ():
            with suppress(BadRow):
                for value in self.values:
                    parse_number(value, decimal or None)
                return decimal
        return None

    @cached_property
    def amounts(self) -> list[float]:
        """The values of a column of amounts, as numbers."""
        return [] if self.decimal is None else [parse_number(value, self.decimal or None) for value in self.values]

    @cached_property
    def mean_characters(self) -> float:
        """Mean number of characters of the values as text."""
        return sum(len(str(value)) for value in self.values) / max(len(self.values), 1)


@dataclass(frozen=True)
class Profile:
    """The columns of a file or folder in a sample of its rows."""

    source: str  # the file or folder
    sampled: int  # number of rows of the sample that can be read
    total: int  # number of rows, those included that cannot be read
    columns: Mapping[str, ColumnProfile]  # the columns by name, in the order of the file

    def parts(self, given: str) -> Sequence[str]:
        """Returns the columns of a name, or of a template of `data.columns`."""
        return (given,) if given in self.columns else parts_of(given)

    def column(self, given: str) -> ColumnProfile:
        """Returns the column of a name, or the last one of a template, such as the body below a title."""
        return self.columns[self.parts(given)[-1]]


def profile(source: str, rows: Iterator[RawRow]) -> Profile:
    """Returns the profile of the rows of a file or folder; of many rows, it samples evenly spaced ones.

    Columns without a name are left out. Raises DataError if no row can be read.
    """
    total = 0

    def counted() -> Iterator[RawRow]:
        nonlocal total
        for row in rows:
            total += 1
            yield row._replace(values=row.values and {name: _named(value) for name, value in row.values.items()})

    sample = list(spread(counted(), SAMPLE_ROWS))
    readable = [row.values for row in sample if row.values is not None and not row.reason]
    if not readable and sample:
        raise DataError(f"{source}: none of its {total:,} rows can be read; row {sample[0].number}: {sample[0].reason}")
    names = dict.fromkeys(name for values in readable for name in values if name)
    columns = {}
    for name in names:
        values = [values[name] for values in readable if not is_empty(values.get(name))]
        columns[name] = ColumnProfile(name, values, len(readable) - len(values))
    return Profile(source, len(readable), total, columns)


def profile_files(files: Sequence[str], reading: Reading = RECOGNISED) -> Profile:
    """Returns the profile of files or folders; raises DataError if one cannot be read, or has no rows."""
    return profile(", ".join(files), (row for file in files for row in read_rows(file, reading)))


def is_empty(value: Any) -> bool:
    """Whether a row has no value: nothing, text that is blank, or a number that is not finite or too large for one."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, int | float) and not abs(value) <= float_info.max)


_SOUNDS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"\xff\xfb")
"""How recordings begin."""


def _named(value: Any) -> Any:
    """Returns a name for a file whose content is in the table, so that it is not kept; every other value as it is."""
    if not isinstance(value, Mapping) or not isinstance(content := value.get("bytes"), bytes):
        return value
    sounds = content.startswith(_SOUNDS) and content[8:12] != b"WEBP"
    return f"{Path(value.get('path') or sha256(content)[:8]).stem}{'.wav' if sounds else '.png'}"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | float | Decimal):
        return WHOLE if float(value).is_integer() else NUMBER
    if isinstance(value, str):
        return _kind_of_text(value.strip())
    if isinstance(value, date | time | timedelta):
        return DATE
    if isinstance(value, Mapping):
        return OBJECT
    if isinstance(value, list):
        kinds = {_kind(each) for each in value}
        if kinds and all(isinstance(each, str) for each in value):  # a token or label may be a number
            return TEXTS
        names = {NUMBERS: {WHOLE, NUMBER}, OBJECTS: {OBJECT}, TEXTS: {BOOLEAN}}
        return next((name for name, parts in names.items() if kinds <= parts), MIXED) if kinds else NOTHING
    return MIXED


def _kind_of_text(text: str) -> str:
    if _NUMBER.fullmatch(text) and isfinite(number := float(text)):
        return WHOLE if number.is_integer() else NUMBER
    suffix = Path(text).suffix.lower() if len(text) < 1000 and "\n" not in text else ""
    file = next((name for kind, name in FILES.items() if suffix in SUFFIXES[kind]), TEXT)
    if file == TEXT and _DATE.match(text) and len(text) <= len("2026-01-31T00:00:00.000000+00:00"):
        return DATE
    return BOOLEAN if text.lower() in ("true", "false") else file

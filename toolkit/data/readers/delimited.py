"""CSV and TSV: files with one record per row, whose delimiter and quoting are recognised.

The toolkit has its own reader because each unusable row must be reported with its number in the file and the reason,
while all other rows stay usable.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from toolkit.base.errors import DataError
from toolkit.base.files import cached_while_unchanged
from toolkit.data.readers.encodings import open_text, recognised_encoding, text_encoding
from toolkit.data.readers.raw import RawRow, Reading, check_names, not_text

MAX_FIELD_CHARS = 2**24
"""Longest field of a CSV or TSV file; anything longer is treated as an unclosed quote."""
USUAL = {".csv": ",", ".tsv": "\t"}
"""Delimiter by file suffix."""
DELIMITERS = (",", ";", "\t", "|")
"""Delimiters that are recognised."""
_SNIFFED_LINES = 100
_SEPARATOR = re.compile(r"\ufeff?\"?[sS][eE][pP]=(.)\"?\s*")
"""A first line with which Excel is told the delimiter."""
_DOUBLED = re.compile('[^\t]""|""[^\t\r\n]')
"""A doubled quote that is not an empty field: in a tab-separated file, a sign that its fields are quoted."""


@cached_while_unchanged
def recognise(file: Path, reading: Reading) -> Reading:
    """Returns a reading in which the encoding, the delimiter and the quoting of a file are set.

    The delimiter is the one that divides the header in several columns; if several do, the one that divides the first
    rows in the same number of columns. A tab-separated file has no quoting if one of its quotes is never closed, or
    followed by text, and none is doubled. Raises DataError if the encoding is not recognised.
    """
    reading = replace(reading, encoding=text_encoding(file, reading.encoding))
    delimiter = reading.delimiter or _delimiter(file, reading)
    return replace(reading, delimiter=delimiter, quoting=reading.quoting or _quoting(file, reading, delimiter))


def _delimiter(file: Path, reading: Reading) -> str:
    with open_text(file, str(reading.encoding), newline="") as opened:
        lines = list(islice(opened, _SNIFFED_LINES))
    usual = USUAL[file.suffix.lower()]
    if lines and (said := _SEPARATOR.fullmatch(lines[0])):
        return said[1]
    fits = {delimiter: _fit(lines, delimiter, reading.quoting) for delimiter in DELIMITERS}
    likely = [delimiter for delimiter in DELIMITERS if fits[delimiter] >= 0.5]
    return max(likely, key=lambda delimiter: (fits[delimiter], delimiter == usual), default=usual)


def _fit(lines: list[str], delimiter: str, quoting: str | None) -> float:
    """Returns how well a delimiter fits the lines: 0 if the first record has only one column; otherwise above 0."""
    first, *others = [record for _, record in records(lines, delimiter, quoting)] or [""]
    if isinstance(first, str) or len(first) < 2:
        return 0.0
    return (1 + sum(len(record) == len(first) for record in others if not isinstance(record, str))) / (1 + len(others))


def _quoting(file: Path, reading: Reading, delimiter: str) -> Literal["minimal", "none"]:
    if delimiter != "\t":
        return "minimal"
    with open_text(file, str(reading.encoding), newline="") as opened:
        balanced = not any(isinstance(record, str) for _, record in records(opened, delimiter, "minimal"))
    with open_text(file, str(reading.encoding), newline="") as opened:
        return "minimal" if balanced or any(map(_DOUBLED.search, opened)) else "none"


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of a file; raises DataError if the header cannot be read, or two columns have the same name."""
    reading = recognise(file, reading)
    with open_text(file, str(reading.encoding), newline="") as opened:
        found = records(opened, str(reading.delimiter), reading.quoting)
        line, header = next(found, (0, []))
        if not isinstance(header, str) and _SEPARATOR.fullmatch(str(reading.delimiter).join(header)):
            line, header = next(found, (0, []))
        if problem := header if isinstance(header, str) else not_text(header):
            hint = " Set data.encoding to the file's encoding." if "UTF-8" in problem else ""
            raise DataError(f"{file}: the header (line {line}) cannot be read: {problem}.{hint}")
        if not reading.header:
            found = chain([(line, header)] if header else [], found)
            header = [str(number) for number in range(1, len(header) + 1)]
        check_names(file, list(header))
        for number, record in found:
            if isinstance(record, str):
                yield RawRow(number, None, record)
                continue
            values = dict(zip(header, record, strict=False))
            if len(record) == len(header):
                yield RawRow(number, values)
            else:
                fields = "1 field" if len(record) == 1 else f"{len(record)} fields"
                first = "header" if reading.header else "first row"
                yield RawRow(number, values, f"{fields} where the {first} has {len(header)}")


def note(file: Path, reading: Reading) -> str | None:
    """Returns the settings that were recognised and are not the usual ones, or None; arguments as for `recognise`."""
    found = recognise(file, reading)
    settings = []
    if reading.delimiter is None and found.delimiter != USUAL[file.suffix.lower()]:
        tab = found.delimiter == "\t"
        settings.append("data.delimiter=tab" if tab else f"data.delimiter={found.delimiter!r}")
    if reading.quoting is None and found.quoting == "none":
        settings.append("data.quoting=none")
    settings += recognised_encoding(str(found.encoding), reading.encoding)
    return f"recognised {', '.join(settings)}" if settings else None


class _Lines:
    """An iterator over the lines of a file, with their number; all lines of a record but the first can be reread."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.number = 0
        self.record: list[str] = []
        self._lines = iter(lines)
        self._again: deque[str] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.number += 1
        self.record.append(line)
        return line

    def give_again(self) -> None:
        self._again.extendleft(reversed(self.record[1:]))
        self.number -= len(self.record) - 1


def records(text: Iterable[str], delimiter: str, quoting: str | None) -> Iterator[tuple[int, list[str] | str]]:
    """Yields, for each record that is not blank, its first line's number and its fields, or why it is unusable."""
    lines = _Lines(text)
    rule: Any = csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL
    csv.field_size_limit(MAX_FIELD_CHARS)  # the library's own limit (131072) is shorter than many documents
    reader = csv.reader(lines, delimiter=delimiter, quoting=rule, strict=True)
    while True:
        start, lines.record = lines.number + 1, []
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            span = f"lines {start} to {lines.number}: " if lines.number > start else ""
            if "expected after" in str(error):
                yield start, f'{span}text after the closing quote of a quoted field (a quote inside is written "")'
            elif "field limit" in str(error) and lines.number == start:
                yield start, f"a field has more than {MAX_FIELD_CHARS:,} characters"
            else:  # never closed, so the lines after the first are separate records
                yield start, f"{span}a quoted field is not closed"
                lines.give_again()
            continue
        if record:
            yield start, record

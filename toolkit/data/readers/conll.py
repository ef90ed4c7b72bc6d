"""Reader of CoNLL files: a token per line, a blank line after each text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from toolkit.data.readers.encodings import open_text, text_encoding
from toolkit.data.readers.raw import RawRow
from toolkit.data.reading import Reading

DOCUMENT = "-DOCSTART-"
"""First token of a line that begins a document and belongs to no text."""


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Yields a row per text, with `tokens` from the first column and, if there are others, `tags` from the last.

    Columns are separated by tabs or blanks. A text in which lines differ in their number of columns is unusable.

    Raises:
        DataError: if the file's encoding is not recognised.
    """
    with open_text(file, text_encoding(file, reading.encoding)) as opened:
        lines = ((number, line.split()) for number, line in enumerate(opened, start=1))
        for is_text, group in groupby(lines, key=lambda line: bool(line[1]) and line[1][0] != DOCUMENT):
            if not is_text:
                continue
            (start, first), *others = group
            records = [first, *(fields for _, fields in others)]
            values = {"tokens": [fields[0] for fields in records]}
            if len(first) > 1:
                values["tags"] = [fields[-1] for fields in records]
            odd = next(((number, fields) for number, fields in others if len(fields) != len(first)), None)
            reason = odd and f"line {odd[0]} has {len(odd[1])} columns where line {start} has {len(first)}"
            yield RawRow(start, values, reason)

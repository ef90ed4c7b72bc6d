"""Plain text: a row per line of one file, of several line-aligned files, or per CoNLL sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import count, groupby, zip_longest
from pathlib import Path

from toolkit.data.readers.encodings import open_text, recognised_encoding, text_encoding
from toolkit.data.readers.raw import RawRow, Reading

LINE = "text"
"""The column of a .txt file."""


def read_lines(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the lines of a file that are not blank."""
    with open_text(file, text_encoding(file, reading.encoding)) as opened:
        for number, line in enumerate(opened, start=1):
            if line.strip():
                yield RawRow(number, {LINE: line.rstrip("\n")})


def read_aligned(files: Mapping[str, Path], reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of line-aligned files, by column, numbered by line; lines blank in all files are skipped."""
    encodings = {file: text_encoding(file, reading.encoding) for file in files.values()}
    with ExitStack() as stack:
        files_there = (open_text(*each, _line_end(*each)) for each in encodings.items())
        lines = zip_longest(*map(stack.enter_context, files_there))
        for number, row in zip(count(1), lines, strict=False):
            ended = [file.name for file, line in zip(files.values(), row, strict=True) if line is None]
            values = {name: line.rstrip("\r\n") for name, line in zip(files, row, strict=True) if line is not None}
            if ended or any(line.strip() for line in values.values()):
                reason = f"{' and '.join(ended)} ended before this line; the files have different numbers of lines"
                yield RawRow(number, values, reason if ended else None)


def _line_end(file: Path, encoding: str) -> str | None:
    """Returns the `newline` of `open` for a file whose lines count.

    A carriage return inside a line, as web pages have, would be a line of its own and move all later lines. It ends
    lines only where nothing else does, as in files of old Macs.
    """
    with open_text(file, encoding, "\n") as opened:
        return "\n" if opened.readline().endswith("\n") else None


def note(file: Path, reading: Reading) -> str | None:
    """Returns the encoding of a text file if it is not the one that is set, or UTF-8; None otherwise."""
    settings = recognised_encoding(text_encoding(file, reading.encoding), reading.encoding)
    return f"recognised {settings[0]}" if settings else None


DOCUMENT = "-DOCSTART-"
"""First token of a line that begins a document and belongs to no text."""


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Yields a row per text, with `tokens` from the first column and, if there are others, `tags` from the last.

    Columns are separated by tabs or blanks. A text in which lines differ in their number of columns is unusable.
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

"""Reads line-aligned text files, common in translation: each file is a column, and line k of each is row k."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import count, zip_longest
from pathlib import Path

from toolkit.data.readers import RawRow, open_text


def read_aligned(files: Mapping[str, Path]) -> Iterator[RawRow]:
    """Streams the rows of line-aligned files, numbered by line; lines that are blank in all files are skipped.

    Args:
        files: the files by the name of their column.
    """
    with ExitStack() as stack:
        lines = zip_longest(*(stack.enter_context(open_text(file)) for file in files.values()))
        for number, row in zip(count(1), lines, strict=False):
            ended = [file.name for file, line in zip(files.values(), row, strict=True) if line is None]
            values = {name: line.rstrip("\n") for name, line in zip(files, row, strict=True) if line is not None}
            if ended or any(line.strip() for line in values.values()):
                reason = f"{' and '.join(ended)} ended before this line; the files have different numbers of lines"
                yield RawRow(number, values, reason if ended else None)

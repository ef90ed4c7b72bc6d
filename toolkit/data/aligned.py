"""Line-aligned text files, as translators keep them: line k of each belongs to row k, and each file is a column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import count, zip_longest
from pathlib import Path

from toolkit.data.readers import RawRow, open_text


def read_aligned(files: Mapping[str, Path]) -> Iterator[RawRow]:
    """Reads files side by side; rows are numbered by their line. Lines that are blank in all files are skipped.

    Args:
        files: by the name of the column that each becomes.
    """
    with ExitStack() as stack:
        lines = zip_longest(*(stack.enter_context(open_text(file)) for file in files.values()))
        for number, row in zip(count(1), lines, strict=False):
            ended = [file.name for file, line in zip(files.values(), row, strict=True) if line is None]
            values = {name: line.rstrip("\n") for name, line in zip(files, row, strict=True) if line is not None}
            if ended or any(line.strip() for line in values.values()):
                reason = f"{' and '.join(ended)} ended before this line; the files have different numbers of lines"
                yield RawRow(number, values, reason if ended else None)

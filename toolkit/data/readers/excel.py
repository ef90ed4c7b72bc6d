"""Excel workbooks (.xlsx): a sheet is read row by row, as the text that a CSV file of it would hold."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import date, datetime, time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from toolkit.base.errors import DataError
from toolkit.config.messages import did_you_mean
from toolkit.data.readers.raw import RawRow, Reading, check_names

if TYPE_CHECKING:
    from openpyxl import Workbook

_ERRORS = ("#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A")
_NO_VALUE = "\0"
"""Stands for the value of a formula that was never computed."""


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of a sheet, numbered as in Excel; rows without any value are skipped.

    Numbers become their shortest text, dates ISO 8601; formulas are their last computed values, without which a row
    cannot be used, and errors count as empty.
    """
    with (
        _opened(file) as book,
        _opened(file, formulas=True) if _has_formulas(file) else nullcontext() as written,
        closing(_cells(book, written, _sheet(file, book, reading))) as cells,
    ):
        table = enumerate(map(_texts, cells), start=1)
        filled: Iterator[tuple[int, list[str | None]]] = ((number, row) for number, row in table if row)
        line, header = next(filled, (0, []))
        if not reading.header:
            filled = chain([(line, header)] if header else [], filled)
            header = [str(number) for number in range(1, len(header) + 1)]
        names = [name or "" for name in header]
        check_names(file, names)
        for number, row in filled:
            values = dict(zip(names, row + [None] * (len(names) - len(row)), strict=False))
            reason = f"{len(row)} cells where the first row has {len(names)}" if len(row) > len(names) else None
            if _NO_VALUE in row:
                reason = "a formula has no value; open the file in the program that made it, and save it again"
            yield RawRow(number, values, reason)


def note(file: Path, reading: Reading) -> str | None:
    """Returns which sheet is read and which are not, or None if there is only one; arguments are those of `read`."""
    with _opened(file) as book:
        sheet = _sheet(file, book, reading)
        others = [name for name in book.sheetnames if name != sheet]
    if not others or reading.sheet:
        return None
    return f"read the first sheet, {sheet!r}; for another one, add its name, as in '{file.name}#{others[0]}'"


def _cells(book: Workbook, written: Workbook | None, name: str) -> Generator[Sequence[Any], None, None]:
    """Yields the rows of a sheet; `written` is the workbook with its formulas, if it has any."""
    sheets = [each[name] for each in (book, written) if each is not None]
    for sheet in sheets:
        sheet.reset_dimensions()  # some programs write wrong ones, and rows would be lost
    for row, *formulas in zip(*(sheet.iter_rows(values_only=True) for sheet in sheets), strict=True):
        yield [
            _NO_VALUE if value is None and formula is not None else value
            for value, formula in zip(row, formulas[0] if formulas else row, strict=True)
        ]


_DAMAGED = (BadZipFile, LookupError, ValueError, OSError, EOFError, RuntimeError, SyntaxError, zlib.error)
"""What openpyxl and zipfile raise for files that are damaged; an XML error is a SyntaxError."""


def _has_formulas(file: Path) -> bool:
    with suppress(*_DAMAGED), ZipFile(file) as parts:
        sheets = (name for name in parts.namelist() if name.startswith("xl/worksheets/sheet"))
        return any(re.search(rb"<f[ />]", parts.read(name)) for name in sheets)
    return False


@contextmanager
def _opened(file: Path, formulas: bool = False) -> Iterator[Workbook]:
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise DataError(
            f"{file}: Excel files need openpyxl, which is not installed; pip install 'finetune-toolkit[excel]', or "
            "save the sheet in Excel as 'CSV UTF-8'."
        ) from error
    with warnings.catch_warnings(action="ignore"):  # about styles and extensions, which are not read
        try:  # rows are read and parsed as they are asked for
            with closing(load_workbook(file, read_only=True, data_only=not formulas)) as book:
                yield book
        except _DAMAGED as error:
            raise DataError(f"{file} is not a whole .xlsx workbook, or it has a password: {error}") from error


def _sheet(file: Path, book: Workbook, reading: Reading) -> str:
    names = [sheet.title for sheet in book.worksheets]
    if not names:
        raise DataError(f"{file} has no sheet with cells.")
    if reading.sheet and reading.sheet not in names:
        meant = did_you_mean(reading.sheet, names)
        raise DataError(f"{file} has no sheet {reading.sheet!r}{meant}; it has {', '.join(map(repr, names))}.")
    return reading.sheet or names[0]


def _texts(row: Sequence[Any]) -> list[str | None]:
    """Returns the texts of a row's cells up to the last one that is not empty."""
    texts = [_text(value) for value in row]
    while texts and texts[-1] is None:
        texts.pop()
    return texts


def _text(value: Any) -> str | None:
    if value is None or value in _ERRORS or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    return value.isoformat() if isinstance(value, date | time) else str(value)

"""Readers of text formats: CSV, TSV, JSON, JSON lines, SQuAD's nested format, plain text.

The toolkit has its own readers because each unusable row must be reported with its number in the file and the reason,
while all other rows stay usable.
"""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from toolkit.base.errors import DataError

MAX_FIELD_CHARS = 2**24
"""Longest field of a CSV or TSV file; anything longer is treated as an unclosed quote."""
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


class RawRow(NamedTuple):
    """One row of a source.

    Args:
        number: the line on which the row starts (csv, tsv, jsonl, txt), or its number from 1 (other formats).
        values: values by the source's column names; for an unusable row, the values that could be read, or None.
        reason: why the row cannot be used, or None.
    """

    number: int
    values: dict[str, Any] | None
    reason: str | None = None


def not_text(value: Any) -> str | None:
    """Returns why a value, or a string anywhere inside it, is not valid UTF-8 text; None if it is."""
    if isinstance(value, str):
        found = _NOT_TEXT.search(value)
        if found is None:
            return None
        code = ord(found[0])
        # Bytes that are not UTF-8 were read as U+DC80 to U+DCFF (`surrogateescape`).
        what = (
            "NUL byte"
            if code == 0
            else f"byte 0x{code - 0xDC00:02x}"
            if 0xDC80 <= code <= 0xDCFF
            else f"lone surrogate U+{code:04X}"
        )
        return f"not UTF-8 text ({what} at character {found.start() + 1})"
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return next(filter(None, map(not_text, inner)), None)


def open_text(file: Path, newline: str | None = None) -> TextIO:
    """Opens UTF-8 text such that invalid bytes affect only their own row (see `not_text`)."""
    return file.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)


class _Lines:
    """An iterator over the lines of a file, with their number; all lines of a record but the first can be reread."""

    def __init__(self, file: TextIO) -> None:
        self.number = 0
        self.record: list[str] = []
        self._file = file
        self._again: deque[str] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._file)
        self.number += 1
        self.record.append(line)
        return line

    def give_again(self) -> None:
        self._again.extendleft(reversed(self.record[1:]))
        self.number -= len(self.record) - 1


def _read_delimited(file: Path, delimiter: str) -> Iterator[RawRow]:
    csv.field_size_limit(MAX_FIELD_CHARS)  # the library's own limit (131072) is shorter than many documents
    with open_text(file, newline="") as opened:
        records = _records(opened, delimiter)
        line, header = next(records, (0, []))
        problem = header if isinstance(header, str) else not_text(header)
        if problem:
            raise DataError(f"{file}: the header (line {line}) cannot be read: {problem}.")
        check_names(file, list(header))
        for number, record in records:
            if isinstance(record, str):
                yield RawRow(number, None, record)
                continue
            values = dict(zip(header, record, strict=False))
            if len(record) == len(header):
                yield RawRow(number, values)
            else:
                fields = "1 field" if len(record) == 1 else f"{len(record)} fields"
                yield RawRow(number, values, f"{fields} where the header has {len(header)}")


def _records(file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yields, for each record that is not blank, its first line's number and its fields, or why it is unusable."""
    lines = _Lines(file)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
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
            else:  # never closed, so the lines after the first are separate records
                yield start, f"{span}a quoted field is not closed"
                lines.give_again()
            continue
        if record:
            yield start, record


def check_names(file: Path, names: list[str]) -> None:
    """Checks the names of columns.

    Raises:
        DataError: if a column has no name, or two have the same one.
    """
    if not all(name.strip() for name in names):
        raise DataError(
            f"{file}: a column has no name; the header is {', '.join(map(repr, names))}. "
            "(pandas writes its index like this; to_csv(..., index=False) leaves it out.)"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{file}: more than one column is named {', '.join(map(repr, twice))}.")


def _read_jsonl(file: Path) -> Iterator[RawRow]:
    with open_text(file) as opened:
        for number, line in enumerate(opened, start=1):
            if not line.strip():
                continue
            try:
                values = json.loads(line.rstrip())
            except (ValueError, RecursionError) as error:
                where = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
                yield RawRow(number, {"line": line.strip()}, f"not JSON: {getattr(error, 'msg', error)}{where}")
            else:
                yield _object_row(number, values)


def _object_row(number: int, values: Any) -> RawRow:
    if isinstance(values, dict):
        return RawRow(number, values)
    return RawRow(number, {"row": values}, f"expected a JSON object, received {_kind(values)}")


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "true or false"}.get(
        type(value), "null" if value is None else "a number"
    )


def _read_json(file: Path) -> Iterator[RawRow]:
    with open_text(file) as opened:
        text = opened.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if _is_object(text.lstrip().partition("\n")[0]):
            yield from _read_jsonl(file)  # JSON lines in a .json file
            return
        where = (
            f"line {error.lineno}, column {error.colno}: {error.msg}"
            if isinstance(error, json.JSONDecodeError)
            else str(error)
        )
        raise DataError(f"{file} is not JSON: {where}.") from error
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise DataError(
            f"{file} must hold a list of objects, or an object whose `data` is one; it holds "
            f"{_kind(content)}{' with ' + ', '.join(content) if isinstance(content, dict) else ''}."
        )
    nested = isinstance(content, dict) and any(isinstance(row, dict) and "paragraphs" in row for row in rows)
    yield from _squad_rows(rows) if nested else (_object_row(number, row) for number, row in enumerate(rows, start=1))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _squad_rows(articles: list[Any]) -> Iterator[RawRow]:
    """Flattens SQuAD's format, articles > paragraphs > questions, into one row per question."""
    numbers = count(1)
    for article in articles:
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            yield RawRow(next(numbers), {"article": article}, "not an article with a list of `paragraphs`")
            continue
        for paragraph in paragraphs:
            questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
            if not isinstance(questions, list) or not isinstance(paragraph.get("context"), str):
                yield RawRow(
                    next(numbers), {"paragraph": paragraph}, "not a paragraph with a string `context` and a list `qas`"
                )
                continue
            for question in questions:
                yield _squad_row(next(numbers), paragraph["context"], question)


def _squad_row(number: int, context: str, question: Any) -> RawRow:
    if not isinstance(question, dict):
        return RawRow(number, {"question": question}, f"expected a question object, received {_kind(question)}")
    values = {
        "id": question.get("id"),
        "question": question.get("question"),
        "context": context,
        "answers": question.get("answers"),
    }
    if values["id"] is not None:
        values["id"] = str(values["id"])
    answers = values["answers"]
    if answers is None:
        return RawRow(number, values)
    if not isinstance(answers, list) or not all(_is_answer(answer) for answer in answers):
        return RawRow(
            number, values, "`answers` is not a list of objects with a string `text` and a whole number `answer_start`"
        )
    if answers and question.get("is_impossible") is True:
        return RawRow(number, values, "`is_impossible` is true, but there are answers")
    values["answers"] = {key: [answer[key] for answer in answers] for key in ("text", "answer_start")}
    return RawRow(number, values)


def _is_answer(answer: Any) -> bool:
    return isinstance(answer, dict) and isinstance(answer.get("text"), str) and type(answer.get("answer_start")) is int


def _read_txt(file: Path) -> Iterator[RawRow]:
    with open_text(file) as opened:
        for number, line in enumerate(opened, start=1):
            if line.strip():
                yield RawRow(number, {"text": line.rstrip("\n")})


TEXT_READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".csv": lambda file: _read_delimited(file, ","),
    ".tsv": lambda file: _read_delimited(file, "\t"),
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".txt": _read_txt,
}
"""Reader by file suffix."""

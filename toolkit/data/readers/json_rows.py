"""JSON, JSON lines, and SQuAD's nested format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from toolkit.base.errors import DataError
from toolkit.data.readers.encodings import open_text, text_encoding
from toolkit.data.readers.raw import RawRow, Reading


def read_jsonl(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of a file with one JSON object per line."""
    with open_text(file, text_encoding(file, reading.encoding)) as opened:
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
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def read_json(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows of a list of objects, an object whose `data` is one, SQuAD's nested format, or JSON lines."""
    with open_text(file, text_encoding(file, reading.encoding)) as opened:
        text = opened.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if _is_object(text.lstrip().partition("\n")[0]):
            yield from read_jsonl(file, reading)  # JSON lines in a .json file
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

"""The rows of a request, and its limits: JSON, or a form with files; never a path of the server, nor an address."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from toolkit.api.task import Task
from toolkit.base.console import shorten
from toolkit.base.errors import DataError
from toolkit.config.fields import Column
from toolkit.config.messages import did_you_mean
from toolkit.config.templates import is_template, parts_of
from toolkit.data.columns import is_needed, roles
from toolkit.data.readers.raw import Reading

if TYPE_CHECKING:
    from toolkit.data.table import Table


@dataclass(frozen=True)
class Problem:
    """A problem of a row, by its number in the request, from 1, and the column if it is known."""

    row: int
    column: str | None
    reason: str


class Refusal(Exception):  # noqa: N818 - an answer of the server, not a failure
    """A request that is not answered: HTTP status, reason, unusable rows, and seconds after which to try again."""

    def __init__(
        self, status: int, error: str, problems: Sequence[Problem] = (), retry_after: int | None = None
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.problems, self.retry_after = status, error, problems, retry_after

    @property
    def content(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {"error": self.error, "problems": list(map(asdict, self.problems))}


def of_rows(problems: Sequence[Problem], total: int) -> Refusal:
    """Returns the refusal of a request for its rows."""
    first = problems[0]
    count = len({each.row for each in problems})
    found = f"{count} of {total} rows cannot be used" if total > 1 else "the row cannot be used"
    return Refusal(422, f"{found}: row {first.row}: {first.reason}", problems)


MEGABYTE = 10**6


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    max_rows: int = 256  # rows of a request
    max_chars: int = 1_000_000  # characters of a request's texts
    max_body_mb: float = 32.0  # size of a request's body, in megabytes
    max_queue: int = 128  # requests that are being received or wait for their answers; further ones are rejected
    timeout: float = 60.0  # seconds in which a request is received, and then answered
    batch_wait_ms: float = 3.0  # milliseconds for which a batch with room waits for further requests

    @property
    def max_body(self) -> int:
        """Size of a request's body, in bytes."""
        return int(self.max_body_mb * MEGABYTE)


DATA_URL = re.compile(r"data:[^,;]*(?:;[^,;]*)*;base64,")
BASE64 = "expected the content of the file in base64, or an object with `data` and `name`"
NAMED_COLUMN = re.compile(r"column '([^']+)'")
LONGEST_NAME = 255
SHOWN_CHARS = 60
LONGEST_REASON = 300


@dataclass(frozen=True)
class Columns:
    """The columns of a request's rows; `names` is `data.columns` of the run."""

    task: Task
    names: Mapping[str, str]

    @property
    def own(self) -> dict[str, str]:
        """The task's names of the columns that a prediction reads, by their names in the rows."""
        return {part: name for part, name in roles(self.task, self.names).items() if not self.task.columns[name].label}

    @property
    def given(self) -> dict[str, Column]:
        """Those columns, by their names in the rows."""
        columns = self.task.read_columns()
        return {name: columns[own] for name, own in self.own.items()}

    @property
    def needed(self) -> list[str]:
        """Names of the columns that every row must have."""
        return [name for name, column in self.given.items() if is_needed(column, labelled=False)]

    @property
    def example(self) -> list[str]:
        """Names of the columns of an example row: the needed ones, or one of several alternatives."""
        from toolkit.deploy.predict import needed_columns

        needed = needed_columns(self.task)
        return [part for part, name in self.own.items() if name in needed]

    @property
    def joined(self) -> list[str]:
        """Names of the columns of templates, of which some may be empty."""
        return [part for given in self.names.values() if is_template(given) for part in parts_of(given)]

    @property
    def files(self) -> list[str]:
        """Names of the columns that hold files."""
        return [name for name, column in self.given.items() if column.file]


def _length(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, list) else len(str(value))


def rows_of_json(body: bytes, limits: Limits) -> list[dict[str, Any]]:
    """Returns the rows of `{"rows": [...]}`."""
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:  # the former also for bytes that are not UTF-8
        raise Refusal(400, f"the body is not JSON: {str(error) or type(error).__name__}") from None
    if not isinstance(content, dict):
        raise Refusal(422, f'the body holds {_kind(content)}; expected an object: {{"rows": [...]}}')
    if unknown := [name for name in content if name != "rows"]:
        raise Refusal(422, f"the body has the unknown name {shorten(repr(unknown[0]))}; expected only `rows`")
    rows = content.get("rows")
    if not isinstance(rows, list):
        raise Refusal(422, f"`rows` is {'missing' if rows is None else _kind(rows)}; expected a list of objects")
    _check_count(len(rows), limits)
    wrong = [
        Problem(number, None, f"expected an object with columns, received {_kind(row)}")
        for number, row in enumerate(rows, start=1)
        if not isinstance(row, dict)
    ]
    if wrong:
        raise of_rows(wrong, len(rows))
    return rows


def rows_of_form(parts: Iterable[tuple[str, Any]], columns: Columns, limits: Limits) -> list[dict[str, Any]]:
    """Returns the rows of a form, whose files are `(name, content)`; a repeated column begins a new row."""
    rows: list[dict[str, Any]] = []
    for name, value in parts:
        if name not in columns.given:
            known = ", ".join(columns.given)
            raise Refusal(422, f"the form has the unknown field {shorten(repr(name))}; its fields are {known}")
        if not isinstance(value, str) and name not in columns.files:
            raise Refusal(422, f"the field {name!r} holds a file; send its text instead")
        if not rows or name in rows[-1]:
            rows.append({})
        rows[-1][name] = value
    _check_count(len(rows), limits)
    return rows


def checked_table(rows: Sequence[dict[str, Any]], columns: Columns, reading: Reading, limits: Limits) -> Table:
    """Checks the rows of a request, whose files are base64 or `(name, content)`; rejects them if any is unusable."""
    from toolkit.data.table import exclusions, read_given

    texts = (value for row in rows for name, value in row.items() if name not in columns.files)
    if sum(map(_length, texts)) > limits.max_chars:  # before they are tokenised; files are bounded by the body
        most = f"{limits.max_chars:,} characters"
        raise Refusal(413, f"the rows have more than {most}; send fewer or shorter ones, or raise --max-chars")
    problems: list[Problem] = []
    held = {number: _with_files(row, number, columns, problems) for number, row in enumerate(rows, start=1)}
    for problem in problems:
        held.pop(problem.row, None)
    numbers = list(held)
    try:
        table = read_given(list(held.values()), columns.task, columns.names, labelled=False, reading=reading)
    except DataError as error:  # of the columns of all rows, or there are none left
        if not problems:
            raise Refusal(422, str(error)) from error
        raise of_rows(problems, len(rows)) from error
    except RecursionError as error:
        raise Refusal(422, "the rows are nested too deeply") from error
    problems += [_problem(numbers[bad.number - 1], bad.reason, columns) for bad in table.bad]
    if problems:
        raise of_rows(sorted(problems, key=lambda each: each.row), len(rows))
    if table.excluded:
        raise Refusal(422, "; ".join(map(str, exclusions(table))))
    return table


def _with_files(row: Mapping[str, Any], number: int, columns: Columns, problems: list[Problem]) -> dict[str, Any]:
    """Returns a row with the content of its files, and adds its errors to `problems`."""
    for name in columns.needed:
        if name not in row:
            there = ", ".join(map(repr, row)) or "no column"
            hint = did_you_mean(name, list(row))
            problems.append(Problem(number, name, f"column {name!r} is missing{hint}; the row has {shorten(there)}"))
    held = dict(row)
    for name in columns.files:
        try:
            if row.get(name) is not None:
                held[name] = _file(row[name], name)
        except ValueError as error:
            problems.append(Problem(number, name, f"column {name!r}: {error}"))
    return held


def _file(value: Any, column: str) -> dict[str, Any]:
    """Returns a file as `datasets` stores one, so that its name is never opened; a ValueError if it is no content."""
    if isinstance(value, tuple):
        name, content = value
    else:
        name, content = _decoded(value)
    if not content:
        raise ValueError("the file is empty (0 bytes)")
    return {"bytes": content, "path": name or f"column {column!r}"}


def _decoded(value: Any) -> tuple[str, bytes]:
    name, data = "", value
    if isinstance(value, Mapping):
        if unknown := [key for key in value if key not in ("data", "name")]:
            raise ValueError(f"received an object with {shorten(repr(unknown[0]))}; {BASE64}")
        name, data = value.get("name", ""), value.get("data")
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise ValueError(f"`name` must be a text of at most {LONGEST_NAME} characters")
    if not isinstance(data, str):
        raise ValueError(f"received {_kind(data)}; {BASE64}")
    start = DATA_URL.match(data)
    try:
        return name, base64.b64decode(data[start.end() :] if start else data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(
            f"{shorten(repr(data[:SHOWN_CHARS]))} is not base64; {BASE64} (paths and addresses are not opened)"
        ) from None


def _problem(number: int, reason: str, columns: Columns) -> Problem:
    named = NAMED_COLUMN.search(reason)
    only = columns.needed[0] if len(columns.needed) == 1 else None
    return Problem(number, named[1] if named else only, shorten(reason, LONGEST_REASON))


def _check_count(count: int, limits: Limits) -> None:
    if not count:
        raise Refusal(422, "there are no rows")
    if count > limits.max_rows:
        raise Refusal(
            413,
            f"{count:,} rows, but a request may have {limits.max_rows:,}; send several requests, or raise --max-rows",
        )


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _kind(value: Any) -> str:
    """Returns the type of a value in the words of JSON."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    for kinds, name in ((str, "a text"), (int | float, "a number"), (list, "a list")):
        if isinstance(value, kinds):
            return name
    return "an object" if isinstance(value, dict) else type(value).__name__

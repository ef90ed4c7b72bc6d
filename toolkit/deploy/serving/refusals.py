"""Requests that are not answered, with the reason: the errors of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """What is wrong with a row.

    Args:
        row: its number in the request, from 1.
        column: the column, if it is known.
        reason: what is wrong.
    """

    row: int
    column: str | None
    reason: str


class Refusal(Exception):  # noqa: N818 - an answer of the server, not a failure
    """A request that is not answered.

    Args:
        status: the status code of HTTP.
        error: why, and what to do.
        problems: the rows that cannot be used.
        retry_after: seconds after which the client may try again, or None.
    """

    def __init__(
        self, status: int, error: str, problems: Sequence[Problem] = (), retry_after: int | None = None
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.problems, self.retry_after = status, error, problems, retry_after

    @property
    def content(self) -> dict[str, Any]:
        """The answer's JSON."""
        rows = [{"row": each.row, "column": each.column, "reason": each.reason} for each in self.problems]
        return {"error": self.error, "problems": rows}


def of_rows(problems: Sequence[Problem], total: int) -> Refusal:
    """Returns the refusal of a request for its rows."""
    first = problems[0]
    count = len({each.row for each in problems})
    found = f"{count} of {total} rows cannot be used" if total > 1 else "the row cannot be used"
    return Refusal(422, f"{found}: row {first.row}: {first.reason}", problems)

"""Records of predictions that are created on demand instead of being kept in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from toolkit.api.batch import BadRow, Record
from toolkit.base.console import shorten


class LazyRecords:
    """Records that each iteration creates again with `make`; `Task.decode` may return them."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def columns_of(records: Iterable[Record], *names: str) -> list[list[Any]]:
    """Returns the values of each name in all records."""
    rows = list(records)
    return [[row[name] for row in rows] for name in names]


def as_number(value: Any) -> float:
    """Returns a value as a number; NaN if it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def checked_text(value: Any, name: str, place: str) -> str:
    """Returns a text. Messages say what it is (`name`) and where it comes from (`place`).

    Raises BadRow if it is missing, blank or not text.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow(f"the {name} is missing: {place} is empty or not there")
    if not isinstance(value, str):
        raise BadRow(f"{place} holds {shorten(repr(value))}, not text")
    return value


FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
"""Words for yes and no."""


def as_flag(value: Any, name: str) -> bool:
    """Returns a value of a column as true or false; raises BadRow if it is neither."""
    number = as_number(value)
    word = str(value).strip().lower() if math.isnan(number) else f"{number:g}"
    if word not in FLAGS:
        raise BadRow(f"column {name!r} holds {shorten(repr(value))}, expected true or false, or 1 or 0")
    return FLAGS[word]

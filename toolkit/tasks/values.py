"""Checks of single values of rows that several tasks share."""

from __future__ import annotations

from typing import Any

from toolkit.api.batch import BadRow
from toolkit.base.console import shorten


def checked_text(value: Any, name: str, place: str) -> str:
    """Returns a text.

    Args:
        value: the value.
        name: what it is, for messages.
        place: where it comes from, for messages.

    Raises:
        BadRow: if it is missing, blank or not text.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow(f"the {name} is missing: {place} is empty or not there")
    if not isinstance(value, str):
        raise BadRow(f"{place} holds {shorten(repr(value))}, not text")
    return value

"""One form for equal numbers: tables write 5 or 5.0, depending on the other rows."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.([0-9]+))?")
"""A number as spreadsheets write it; text such as `007`, `1e5` or `nan` is a name."""


def plain_number(text: str) -> str:
    """Returns a number in its shortest form (`5.0` becomes `5`), and any other text as it is."""
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    sign, digits, fraction = number[1].replace("+", ""), number[2], (number[3] or "").rstrip("0")
    if fraction:
        return f"{sign}{digits}.{fraction}"
    return digits if digits == "0" else sign + digits

"""Numbers and lists as people and programs write them into text."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from toolkit.api.batch import BadRow


def printed_list(text: str) -> Any:
    """Returns the list, or the mapping of names, that Python, numpy or JSON has printed as `text`; None if it is none.

    Raises BadRow if it begins as a printed list and cannot be read.
    """
    text = "()" if text.strip() == "set()" else text.strip()
    if re.match(r"[\w.]+\(\s*[\[({]+\s*['\"]", text):  # array(['big']), frozenset({'big'})
        raise BadRow(f"label {text!r} looks like a printed list and cannot be read as one")
    if text[:1] + text[-1:] not in ("[]", "()", "{}") or _NEGATIVE.fullmatch(text):
        return None
    between = r"(?<=['\"])\s+(?=['\"])|(?<=[\d.])\s+(?=[\d.+-])"  # numpy prints no commas
    form = text if "," in text else re.sub(between, ", ", text)
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            found = read(form)
            if isinstance(found, list | tuple | set | dict) and ... not in found:
                kept = sorted(found, key=str) if isinstance(found, set) else found
                return list(kept) if isinstance(kept, tuple) else kept
    if re.fullmatch(r"\{{{0}\}}|\[{0},{0}\]".format(r"[^][{}()'\":.]*"), text):  # Postgres prints no quotes
        return [part.strip() for part in text[1:-1].split(",")]
    if re.match(r"\[.*(['\"]|\.\.\.)|[({]\s*['\"]", text, re.DOTALL):
        raise BadRow(f"label {text!r} looks like a printed list and cannot be read as one")
    return None


def vector(parts: Sequence[Any]) -> list[bool] | None:
    """Returns a vector of 0 and 1, also as text, as true and false, or None if it is none."""
    texts = [str(part).strip().lower() for part in parts]
    return [text[0] in "1t" for text in texts] if all(map(_FLAG.fullmatch, texts)) else None


_FLAG = re.compile(r"[01](\.0*)?|true|false")
_CURRENCY = r"[A-Z]{3}|[A-Z]{0,3}\$|(?:kr|Kč|zł|Ft|Rs|lei|Fr)\.?|[%‰$£¥¢€\u20a0-\u20cf]"
_AMOUNT = re.compile(rf"([+-]?)(?:{_CURRENCY})?([+-]?)([\d.,']*\d[.,]?)(?:{_CURRENCY})?")
"""A number with a sign, and a currency or percent sign before or after it; blanks are gone."""
_NEGATIVE = re.compile(r"\([\d.,']*\d\)")  # as accountants write it; printed tuples have blanks
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)
_LARGEST = 3.4e38  # a target is a number of 32 bits
_BLANKS = r"[\s\u00a0\u2007\u2009\u202f_]+"


def parse_number(value: Any, decimal: str | None = None) -> float:
    """Returns a number as people write it, NaN for a missing one: `1,234.5`, `1.234,5`, `14,52 €`, `$ 5`, `12 %`.

    Args:
        value: a number, text or None.
        decimal: the decimal separator, `.` or `,`; the other one, blanks and apostrophes are between thousands. None
            takes numbers without a comma only.

    Raises:
        BadRow: if it is no number, or is not finite in 32 bits.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    number = "text" if isinstance(value, bool) else value
    if isinstance(value, str) and (decimal == "," or not _FLOAT.fullmatch(value.strip())):
        grouped = re.sub(rf"(?<=\d){_BLANKS}(?=\d)", "'", value.replace("\u2212", "-"))
        amount = _AMOUNT.fullmatch(re.sub(_BLANKS, "", grouped))
        if amount and decimal is None and "," in amount[3]:
            raise BadRow(f"label {value!r}: set task.decimal=',' if 3,5 is three and a half, '.' if 3,500 is thousands")
        number = "text" if amount is None else amount[1] + amount[2] + _plain(amount[3], decimal or ".")
    try:
        found = float(number)
    except (TypeError, ValueError, OverflowError):
        raise BadRow(f"label {value!r} is not a number") from None
    if abs(found) > _LARGEST:
        raise BadRow(f"label {value!r} is not finite in 32 bits")
    return found


def _plain(digits: str, decimal: str) -> str:
    """Returns digits as Python reads them; groups of thousands have three digits each and do not begin with 0."""
    thousands = "," if decimal == "." else "."
    whole, point, fraction = digits.partition(decimal)
    if not re.fullmatch(rf"\d*|[1-9]\d{{0,2}}([{thousands}']\d{{3}})+", whole):
        return "text"
    return re.sub(r"\D", "", whole) + ("." if point else "") + fraction

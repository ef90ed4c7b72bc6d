"""Raw rows, as the readers of all formats yield them, checked and previewed; and how a file is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any, Literal, NamedTuple

from toolkit.base.errors import DataError
from toolkit.config.sections import DataConfig

PREVIEW_CHARS = 80
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


class RawRow(NamedTuple):
    """One row of a source."""

    # the line on which the row starts (csv, tsv, jsonl, txt), its row in the sheet (xlsx), or its number from 1 (other
    # formats)
    number: int
    # values by the source's column names; for an unusable row, the values that could be read, or None
    values: dict[str, Any] | None
    reason: str | None = None  # why the row cannot be used, or None


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


def check_names(file: Path, names: list[str]) -> None:
    """Raises DataError if a column has no name, or two have the same one."""
    if not all(name.strip() for name in names):
        raise DataError(
            f"{file}: a column has no name; the header is {', '.join(map(repr, names))}. "
            "(pandas writes its index like this; to_csv(..., index=False) does not. If this is a row and not a header, "
            "set data.header=false and name the columns by number.)"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{file}: more than one column is named {', '.join(map(repr, twice))}.")


def checked(rows: Iterable[RawRow], where: str, reading: Reading) -> Iterator[RawRow]:
    """Yields rows, and adds the reason to those that are not UTF-8 text; raises DataError if there are none."""
    number = 0
    for number, values, reason in rows:
        for column, value in (values or {}).items():
            if reason:
                break
            problem = not_text(value)
            reason = problem and f"column {column!r} is {problem}"
        clean = stripped if reading.strip_html else unescape if reading.unescape_html else None
        yield RawRow(number, _cleaned(values, clean) if clean else values, reason)
    if not number:
        raise DataError(f"{where} has no rows.")


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Returns a value whose strings, at any depth, are cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {name: _cleaned(inner, clean) for name, inner in value.items()}
    return [_cleaned(inner, clean) for inner in value] if isinstance(value, list) else value


TAG = (
    r"(?i)</?(?:a|abbr|article|aside|b|blockquote|body|br|button|center|cite|code|col|dd|div|dl|dt|em|figcaption|figure|"
    r"font|footer|form|h[1-6]|head|header|hr|html|i|iframe|img|input|label|li|link|main|meta|nav|ol|option|p|path|pre|q|"
    r"s|section|select|small|source|span|strong|style|sub|sup|svg|table|tbody|td|textarea|tfoot|th|thead|title|tr|u|ul|"
    r"video)(?:\s[^<>]*)?/?>"
)
"""Elements of HTML only: texts hold other words in angle brackets, for instance `<unk>`."""
_UNSEEN = re.compile(r"(?is)<(script|style)\b[^>]*>.*?</\1\s*>|<!--.*?-->|<!doctype[^>]*>")


def stripped(text: str) -> str:
    """Returns a text without HTML tags, scripts and comments, with its entities decoded and its blanks merged."""
    found = unescape(re.sub(TAG, " ", _UNSEEN.sub(" ", text)))
    return text if found == text else " ".join(found.split())


def preview(values: Mapping[str, Any] | None) -> str:
    """Returns the beginnings of a row's values as JSON."""
    return json.dumps({_short(name): _short(value) for name, value in (values or {}).items()}, ensure_ascii=False)


def _short(value: Any) -> str:
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"


TAB = ("\\t", "tab")
Fingerprint = Literal["content", "stat"]
"""Values of `data.fingerprint`."""


@dataclass(frozen=True)
class Reading:
    """How to read a file. None means that it is recognised from the file's content."""

    delimiter: str | None = None  # separator of the columns of .csv and .tsv files, one character
    encoding: str | None = None  # encoding of text files that are not UTF-8 and have no byte-order mark
    # whether the first row of a table names its columns; otherwise their names are `1`, `2` and so on
    header: bool = True
    # `minimal` if fields of .csv and .tsv files may be quoted, `none` if quotes are part of the text
    quoting: Literal["minimal", "none"] | None = None
    unescape_html: bool = False  # whether HTML entities such as `&amp;` are decoded
    strip_html: bool = False  # whether HTML tags are removed, too
    # sheet of an Excel file, or group of an HDF5 file, from the file's name; None means the first sheet, and the
    # datasets outside groups
    sheet: str | None = None
    # whether the bytes of files, or their sizes and times, tell that they have changed
    fingerprint: Fingerprint = "content"

    @classmethod
    def of(cls, data: DataConfig) -> Reading:
        """Returns the reading that the YAML's `data` section asks for."""
        delimiter = "\t" if data.delimiter in TAB else data.delimiter
        html = (data.unescape_html, data.strip_html)
        return cls(delimiter, data.encoding, data.header, data.quoting, *html, fingerprint=data.fingerprint)


RECOGNISED = Reading()
"""Everything is recognised."""

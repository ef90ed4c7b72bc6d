"""HTML in texts: counted in the checked rows, because models are seldom meant to learn `&amp;` or `<br>`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ENTITY = r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]+);"
TAG = (
    r"(?i)</?(?:a|b|blockquote|br|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|small|span|strong|sub|sup|table|td|th|tr|u|ul)"
    r"(?:\s[^<>]*)?/?>"
)
"""Common elements only: texts hold other words in angle brackets, for instance `<unk>`."""


def markup_notes(rows: Any, columns: Mapping[str, str], number: str) -> Iterator[str]:
    """Yields a note for each column of texts with HTML entities or tags, with their number and an example.

    Args:
        rows: a `datasets.Dataset` of checked rows, with null for the texts of unusable ones.
        columns: maps names of its columns to those in the file.
        number: its column with the numbers of the rows in the file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in rows.column_names:
        texts = rows.data.column(name)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            continue
        found = []
        for kind, pattern, hint in (
            ("entities", ENTITY, "data.unescape_html=true decodes them"),
            ("tags", TAG, "they are part of the text"),
        ):
            matches = pc.match_substring_regex(texts, pattern)
            if count := pc.sum(matches).as_py():
                place = pc.index(matches, True).as_py()
                example = pc.extract_regex(texts[place], f"(?P<found>{pattern})").as_py()["found"]
                row = rows.data.column(number)[place].as_py()
                total = len(texts) - texts.null_count
                found.append(f"{count} of {total} texts have HTML {kind} ({example} in row {row}; {hint})")
        if found:
            yield f"column {columns.get(name, name)!r}: {' and '.join(found)}"

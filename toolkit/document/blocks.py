"""What a report says, apart from how it looks: sections of blocks, which `page` and `markdown` show each in their way.

Texts are plain: whoever shows them makes them harmless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from toolkit.base.console import format_value
from toolkit.document.svg import Drawing

MISSING = "-"
"""What a cell without a value shows."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table that shows something else than its value, or has a colour.

    Args:
        text: what is shown.
        value: what the column is sorted by; None is a missing value, which stands last.
        shade: from 0 to 1: how strong its background is.
    """

    text: str
    value: float | None = None
    shade: float | None = None


@dataclass(frozen=True)
class Pictured:
    """A cell of a table that shows a small picture above its text.

    Args:
        text: what is shown below it, and alone in Markdown.
        picture: the bytes of a PNG or JPEG.
    """

    text: str
    picture: bytes


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Code:
    """Text as it was typed: a command, a file, predictions line by line.

    Args:
        text: the lines.
        language: what Markdown colours it as.
    """

    kind: ClassVar[str] = "code"
    text: str
    language: str = "text"


@dataclass(frozen=True)
class Highlights:
    """The few figures to see first: names and values."""

    kind: ClassVar[str] = "highlights"
    figures: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        header: names of the columns.
        rows: of cells: numbers, texts, None for what is missing, `Cell` or `Pictured`.
        sortable: whether a click on a column's name sorts the rows (in HTML).
        caption: what it shows, or nothing.
    """

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    sortable: bool = False
    caption: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Per column whether it holds numbers, apart from what is missing."""
        kinds = [{sort_value(value) for value in column} - {""} for column in zip(*self.rows, strict=True)]
        return [bool(kind) and None not in kind for kind in kinds] or [False] * len(self.header)


@dataclass(frozen=True)
class Figure:
    """A picture: a drawing or a PNG.

    Args:
        title: what it shows; also for screen readers.
        drawing: an SVG; None for a PNG.
        png: the bytes of a PNG; nothing for a drawing.
        file: name of the same picture beside the report, for Markdown; nothing leaves the figure out there.
    """

    kind: ClassVar[str] = "figure"
    title: str
    drawing: Drawing | None = None
    png: bytes = b""
    file: str = ""


@dataclass(frozen=True)
class Gallery:
    """Figures side by side, as many as there is room for.

    Args:
        figures: SVG or PNG.
        title: what they show together.
        file: name of one picture of all, for Markdown; nothing shows there those that have files of their own.
    """

    kind: ClassVar[str] = "gallery"
    figures: Sequence[Figure]
    title: str = "Figures"
    file: str = ""


@dataclass(frozen=True)
class Folded:
    """Blocks that are shown on request.

    Args:
        title: what to click on.
        blocks: what is folded away.
    """

    kind: ClassVar[str] = "folded"
    title: str
    blocks: Sequence[Block]


Block = Text | Code | Highlights | Table | Figure | Gallery | Folded


@dataclass(frozen=True)
class Section:
    """A titled part of a report.

    Args:
        title: its heading.
        blocks: what it holds.
    """

    title: str
    blocks: Sequence[Block]


def shown(value: Any) -> str:
    """Returns a cell as text: numbers with four significant digits, whole ones with commas, a dash for None."""
    if isinstance(value, Cell | Pictured):
        return value.text
    if value is None:
        return MISSING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return format_value(value)


def sort_value(value: Any) -> str | None:
    """Returns the number that a cell is sorted by, "" where it is missing or not finite, None for text."""
    number = value.value if isinstance(value, Cell) else value
    if isinstance(number, int | float) and not isinstance(number, bool):
        return str(number) if math.isfinite(number) else ""
    return "" if number is None else None

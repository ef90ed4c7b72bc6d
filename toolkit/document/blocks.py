"""The content of a report, independent of its format: sections of blocks, which `page` and `markdown` render.

Texts are plain; the renderers escape them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from toolkit.base.console import format_value
from toolkit.document.svg import Drawing

MISSING = "-"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table with a text of its own, or a background colour."""

    text: str  # the text shown
    value: float | None = None  # the number to sort by; None is a missing value, which is sorted last
    shade: float | None = None  # strength of the background colour, from 0 to 1; None for no colour


@dataclass(frozen=True)
class Pictured:
    """A cell of a table that shows a small PNG or JPEG above its text; Markdown shows only the text."""

    text: str
    picture: bytes


@dataclass(frozen=True)
class Marked:
    """A cell of a table with words, each with its mark: empty for none, or `mark` (bold), `ins` (italic), `del`."""

    words: Sequence[tuple[str, str]]

    @property
    def text(self) -> str:
        """The words, without marks."""
        return " ".join(word for word, _ in self.words)


@dataclass(frozen=True)
class Choice:
    """A cell of a table with a box that chooses a run of the page's `Overlay`, by its place (in HTML)."""

    text: str
    run: int


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Code:
    """Preformatted text: a command, a file, or predictions line by line; the language is for Markdown."""

    kind: ClassVar[str] = "code"
    text: str
    language: str = "text"


@dataclass(frozen=True)
class Highlights:
    """The most important figures: names and values."""

    kind: ClassVar[str] = "highlights"
    figures: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]  # names of the columns
    rows: Sequence[Sequence[Any]]  # rows of cells: numbers, texts, None for a missing value, `Cell`, `Pictured`, ...
    sortable: bool = False  # whether clicking a column's name sorts the rows (in HTML)
    caption: str = ""  # description of the table; may be empty
    # whether a narrow screen shows the cells of a row below each other (in HTML), instead of scrolling
    stacked: bool = False

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether all its values that are not missing are numbers."""
        kinds = [{sort_value(value) for value in column} - {""} for column in zip(*self.rows, strict=True)]
        return [bool(kind) and None not in kind for kind in kinds] or [False] * len(self.header)

    def without(self, *names: str) -> Table:
        """Returns the table without some of its columns."""
        kept = [place for place, name in enumerate(self.header) if name not in names]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, header=[self.header[place] for place in kept], rows=rows)


@dataclass(frozen=True)
class Figure:
    """A figure: an SVG drawing or a PNG."""

    kind: ClassVar[str] = "figure"
    title: str  # description, also for screen readers
    drawing: Drawing | None = None  # an SVG; None for a PNG
    png: bytes = b""  # the bytes of a PNG; empty for a drawing
    # name of the same figure as a file beside the report, for Markdown; if empty, Markdown leaves it out
    file: str = ""


@dataclass(frozen=True)
class Gallery:
    """Figures side by side, as many as fit; `file` has all of them, for Markdown, or each has its own."""

    kind: ClassVar[str] = "gallery"
    figures: Sequence[Figure]
    title: str = "Figures"
    file: str = ""


@dataclass(frozen=True)
class Folded:
    """Blocks that are collapsed until their title is clicked."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: Sequence[Block]


Points = tuple[Sequence[float], Sequence[float], Sequence[float | None]]
"""Steps, seconds since the start, and values of a curve; None leaves a gap."""


@dataclass(frozen=True)
class Overlay:
    """Curves of several runs in the same charts, drawn by the page's script (in HTML only).

    The reader chooses runs (the cells `Choice` of a table) and charts, smooths, and changes the axes.
    """

    kind: ClassVar[str] = "overlay"
    runs: Sequence[str]  # names of the runs
    # curves by the name of their number, and by the place of their run in `runs`
    charts: Mapping[str, Mapping[int, Points]]
    shown: Sequence[str]  # charts that are shown at first
    chosen: Sequence[int]  # places of the runs that are chosen at first

    @property
    def content(self) -> dict[str, Any]:
        """What the page's script reads."""
        return {"runs": self.runs, "charts": self.charts, "shown": self.shown, "chosen": self.chosen}


Block = Text | Code | Highlights | Table | Figure | Gallery | Folded | Overlay


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    title: str
    blocks: Sequence[Block]


class Page(NamedTuple):
    """A report, as HTML and as Markdown; of its title and the sentence below it, the latter may be empty."""

    title: str
    lead: str
    sections: Sequence[Section]


def shown(value: Any) -> str:
    """Returns a cell as text: integers with commas, other numbers with four significant digits, a dash for None."""
    if isinstance(value, Cell | Pictured | Marked | Choice):
        return value.text
    if value is None:
        return MISSING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return format_value(value)


def sort_value(value: Any) -> str | None:
    """Returns the number that a cell is sorted by, "" if it is missing or not finite, None for text."""
    number = value.value if isinstance(value, Cell) else value
    if isinstance(number, int | float) and not isinstance(number, bool):
        return str(number) if math.isfinite(number) else ""
    return "" if number is None else None

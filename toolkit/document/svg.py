"""SVG drawings as values, for a page or a separate file.

Drawings are readable at a width between 330 and 740 pixels. CSS classes set their colours, so that a page can show them
in light and in dark mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 440
"""Width of every drawing, in its own pixels."""
LETTER = 7.8
"""Approximate width of a letter in pixels; the font depends on the browser."""
COLOURS = ("#1f4e9e", "#e06c00", "#0f8f6b", "#a8328f", "#7a5f00", "#56a3e8")
"""Colours of the series, unless the page defines others."""
STYLE = "svg{color:#1d2430}.soft{fill:#5a6475}.grid{stroke:#d9dde4}"
"""Style of text and grid outside a page; series have their own colours."""


@dataclass(frozen=True)
class Drawing:
    """An SVG drawing, `WIDTH` pixels wide."""

    parts: Sequence[str]  # SVG elements, with their texts escaped
    title: str  # description, for screen readers
    height: int  # height in pixels

    def svg(self, place: str = "") -> str:
        """Returns the SVG element; `place` holds additional attributes."""
        return (
            f'<svg {place}viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(self.title)}" '
            f'font-size="14" font-family="system-ui, sans-serif" fill="currentColor">{"".join(self.parts)}</svg>'
        )

    def __html__(self) -> str:
        """Returns the SVG element; templates insert it without escaping."""
        return self.svg()


def text(words: str, x: float, y: float, anchor: str = "start", kind: str = "soft") -> str:
    """Returns an SVG text element at a place in pixels; `anchor` is `start`, `middle` or `end`, `kind` a CSS class."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def coloured(number: int, *parts: str) -> str:
    """Returns elements in the colour of the series with this number, from 0; a page may define the colour."""
    colour = COLOURS[number % len(COLOURS)]
    return f'<g class="s{number % len(COLOURS)}" stroke="{colour}" fill="{colour}">{"".join(parts)}</g>'


def sheet(drawings: Sequence[Drawing]) -> str:
    """Returns one SVG file of all drawings, two per row, in the default colours."""
    parts, top = [], 10
    for first in range(0, len(drawings), 2):
        row = drawings[first : first + 2]
        for column, drawing in enumerate(row):
            left = 10 + column * (WIDTH + 30)
            parts.append(drawing.svg(f'x="{left}" y="{top}" width="{WIDTH}" height="{drawing.height}" '))
        top += max(drawing.height for drawing in row) + 20
    width = 2 * WIDTH + 50 if len(drawings) > 1 else WIDTH + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{top}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )

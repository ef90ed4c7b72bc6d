"""SVG pictures as values: their parts, and how they are put into a page or into a file of their own.

Pictures are drawn for a width between 330 and 740 pixels, at which their text is readable. Classes give their colours,
so that a page shows them in light and in dark mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 440
"""Width of every picture, in its own pixels."""
LETTER = 7.8
"""About how wide a letter is, in pixels; only the reader's browser knows its font."""
COLOURS = ("#1f4e9e", "#e06c00", "#0f8f6b", "#a8328f", "#7a5f00", "#56a3e8")
"""Of the series where no page gives others."""
STYLE = "svg{color:#1d2430}.soft{fill:#5a6475}.grid{stroke:#d9dde4}"
"""Text and grid of pictures outside a page; series have colours of their own."""


@dataclass(frozen=True)
class Drawing:
    """A picture `WIDTH` pixels wide.

    Args:
        parts: SVG elements, whose texts are escaped already.
        title: what it shows, for screen readers.
        height: in pixels.
    """

    parts: Sequence[str]
    title: str
    height: int

    def svg(self, place: str = "") -> str:
        """Returns the SVG element; `place` is further attributes of it."""
        return (
            f'<svg {place}viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(self.title)}" '
            f'font-size="14" font-family="system-ui, sans-serif" fill="currentColor">{"".join(self.parts)}</svg>'
        )

    def __html__(self) -> str:
        """Returns the SVG element for templates, which do not escape it then."""
        return self.svg()


def text(words: str, x: float, y: float, anchor: str = "start", kind: str = "soft") -> str:
    """Returns an escaped text at a place in pixels; `anchor` is start, middle or end, `kind` a class of the page."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def coloured(number: int, *parts: str) -> str:
    """Returns parts in the colour of the series of that number, by the page if there is one."""
    colour = COLOURS[number % len(COLOURS)]
    return f'<g class="s{number % len(COLOURS)}" stroke="{colour}" fill="{colour}">{"".join(parts)}</g>'


def sheet(drawings: Sequence[Drawing]) -> str:
    """Puts pictures into one SVG file, two in a row, with the colours that a page would give them."""
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

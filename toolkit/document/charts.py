"""Line charts as inline SVG: cheap enough for every run, however small.

They are drawn for a width between 330 and 740 pixels, at which their text is readable, and take their colours from the
page they stand in, by day and by night.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

WIDTH, PLOT_HEIGHT, ROW = 440, 200, 18
RIGHT, BOTTOM = WIDTH - 14, 40
LETTER = 7.8
"""About how wide a letter is, in pixels."""
COLOURS = ("#1f4e9e", "#e06c00", "#0f8f6b", "#a8328f", "#7a5f00", "#56a3e8")
"""Of the lines where no page says otherwise."""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "12 4")
"""Lines differ in colour and in dashes, for those who do not see colours."""
MOST_POINTS = 400
"""Most points of a line that are drawn; of more, the lowest and highest of each stretch are."""
MOST_MARKED = 60
"""Most points of a chart that are marked, and say their value."""

STYLE = "svg{color:#1d2430}.soft{fill:#5a6475}.grid{stroke:#d9dde4}"
"""Ink and grid of pictures that stand in no page; lines bring their own colours."""

Line = tuple[Sequence[float | None], Sequence[float | None]]
"""Places and values of a line's points; None and NaN are missing, and leave a gap."""


@dataclass(frozen=True)
class Axis:
    """Where values stand on an axis.

    Args:
        low: value at its start.
        high: value at its end.
        start: pixel of `low`.
        end: pixel of `high`.
        ticks: values that are named, with their names.
        log: whether equal ratios, not differences, are equally far apart.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Returns pixels of values, `[N]` each; NaN for what is missing, or has no logarithm."""
        low, high = self.low, self.high
        if self.log:
            values = np.log10(np.where(values > 0, values, np.nan))
            low, high = math.log10(low), math.log10(high)
        return self.start + (values - low) / (high - low) * (self.end - self.start)


def axis(
    values: np.ndarray, start: float, end: float, *, log: bool = False, zero: bool = False, whole: bool = False
) -> Axis:
    """Chooses an axis that holds all finite values.

    Args:
        values: `[N]`; NaN is left out.
        start: pixel of its start.
        end: pixel of its end.
        log: logarithmic; ignored if no value is above 0.
        zero: whether it begins at 0.
        whole: whether values are counts, which have no ticks between them and no room beside them.
    """
    finite = values[np.isfinite(values)]
    if log and (positive := finite[finite > 0]).size:
        low, high = float(positive.min()), float(positive.max())
        low, high = (low / 1.5, high * 1.5) if high < low * 1.5 else (low / 1.05, high * 1.05)
        return Axis(low, high, start, end, _log_ticks(low, high), log=True)
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high == 0:
        high = 1.0
    elif low == high:
        room = 1.0 if whole else abs(low) / 10
        low, high = low - room, high + room
    elif not whole:
        room = (high - low) / 20
        low, high = low if zero and not low else low - room, high + room
    return Axis(low, high, start, end, _ticks(low, high, whole))


def _ticks(low: float, high: float, whole: bool, most: int = 6) -> list[tuple[float, str]]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    places = [number * step for number in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)]
    return [(place, number_text(place, step)) for place in places]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    every = max(1, (last - first) // 6)
    places = [f * 10.0**power for power in range(first, last + 1, every) for f in factors]
    return [(place, number_text(place, place)) for place in places if low <= place <= high]


def number_text(value: float, step: float) -> str:
    """Returns a tick's name: as many digits as its distance to the next one asks for."""
    value = 0.0 if abs(value) < step * 1e-6 else value
    largest = max(abs(value), step)
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= unit * (10 if sign == "k" else 1):
            return f"{value / unit:.{_decimals(step / unit)}f}{sign}" if value else "0"
    if step < 1e-3:
        if not value:
            return "0"
        power = math.floor(math.log10(abs(value)) + 1e-9)
        return f"{float(f'{value / 10.0**power:.{_decimals(step / 10.0**power)}f}'):g}e{power}"
    return f"{value:.{_decimals(step)}f}"


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def line_chart(
    series: Mapping[str, Line], *, title: str, x_label: str, y_label: str, log: bool = False, zero: bool = False
) -> str:
    """Draws lines over steps.

    Args:
        series: lines by name.
        title: what the chart shows, for those who do not see it.
        x_label: what the steps are.
        y_label: what the values are, with their unit.
        log: whether values stand on a logarithmic axis.
        zero: whether the axis of values begins at 0.

    Returns:
        The SVG element, with every text escaped. Missing values are counted beside a line's name.
    """
    lines = {name: (_array(steps), _array(values)) for name, (steps, values) in series.items()}
    every = [np.concatenate([each[i] for each in lines.values()] or [np.empty(0)]) for i in (0, 1)]
    legend, top = _legend(lines, y_label)
    y = axis(every[1], top + PLOT_HEIGHT, top, log=log, zero=zero)
    left = 16 + LETTER * max((len(name) for _, name in y.ticks), default=0)
    x = axis(every[0], left, RIGHT, whole=True)
    marked = sum(len(steps) for steps, _ in lines.values()) <= MOST_MARKED
    drawn = [
        part
        for number, (name, line) in enumerate(lines.items())
        for part in _line(name, *line, x, y, number, marked=marked)
    ]
    return svg([*frame(x, y, x_label), *legend, *drawn], title, top + PLOT_HEIGHT + BOTTOM)


def svg(parts: Iterable[str], title: str, height: float) -> str:
    """Puts parts, trusted SVG, into a picture `WIDTH` wide."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}" font-size="14" '
        f'font-family="system-ui, sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


def text(words: str, x: float, y: float, anchor: str = "start", kind: str = "soft") -> str:
    """Returns an escaped text at a place in pixels; `anchor` is start, middle or end, `kind` a class of the page."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def coloured(number: int, *parts: str) -> str:
    """Returns parts in the colour of the line of that number, by the page if there is one."""
    colour = COLOURS[number % len(COLOURS)]
    return f'<g class="s{number % len(COLOURS)}" stroke="{colour}" fill="{colour}">{"".join(parts)}</g>'


def sheet(drawings: Sequence[str]) -> str:
    """Puts charts into one picture, two in a row, that needs no page: it brings the colours that a page would give it.

    Args:
        drawings: what `line_chart` returned.

    Returns:
        A whole SVG file.
    """
    heights = [int(drawing.split('viewBox="0 0 ', 1)[1].split('"')[0].split()[1]) for drawing in drawings]
    parts, top = [], 10
    for first in range(0, len(drawings), 2):
        for column, drawing in enumerate(drawings[first : first + 2]):
            place = (
                f'<svg x="{10 + column * (WIDTH + 30)}" y="{top}" width="{WIDTH}" height="{heights[first + column]}" '
            )
            parts.append(drawing.replace("<svg ", place, 1))
        top += max(heights[first : first + 2]) + 20
    width = 2 * WIDTH + 50 if len(drawings) > 1 else WIDTH + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{top}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def frame(x: Axis, y: Axis, x_label: str) -> list[str]:
    """Returns grid, ticks and the name of the horizontal axis."""
    parts = []
    for place, (_, name) in zip(y.place(_array([value for value, _ in y.ticks])), y.ticks, strict=True):
        parts.append(
            f'<line class="grid" stroke="#ccc" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{place:.1f}" y2="{place:.1f}"/>'
        )
        parts.append(text(name, x.start - 6, place + 4.5, "end"))
    for place, (_, name) in zip(x.place(_array([value for value, _ in x.ticks])), x.ticks, strict=True):
        parts.append(text(name, min(place, WIDTH - LETTER * len(name) / 2), y.start + 17, "middle"))
    return [*parts, text(x_label, (x.start + x.end) / 2, y.start + 34, "middle")]


def _dash(number: int) -> str:
    """The dashes of a line: where colours begin again, they go with other dashes."""
    return DASHES[(number + number // len(COLOURS)) % len(DASHES)]


def _array(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _legend(lines: Mapping[str, tuple[np.ndarray, np.ndarray]], y_label: str) -> tuple[list[str], float]:
    """The name of the values, and those of the lines in as many rows as they need; and where the plot begins."""
    parts, x, y = [text(y_label, 2, 14, kind="ink")], 2.0, 14.0
    if len(lines) > 1 or any(np.isnan(values).any() for _, values in lines.values()):
        y += ROW
        for number, (name, (_, values)) in enumerate(lines.items()):
            gone = int(np.isnan(values).sum())
            words = name + (f" ({gone:,} not finite)" if gone else "")
            wide = 34 + LETTER * len(words)
            if x > 2 and x + wide > WIDTH:
                x, y = 2.0, y + ROW
            sample = (
                f'<line class="line" stroke-width="2.5" stroke-dasharray="{_dash(number)}" '
                f'x1="{x:.0f}" x2="{x + 22:.0f}" y1="{y - 4:.0f}" y2="{y - 4:.0f}"/>'
            )
            parts.append(coloured(number, sample))
            parts.append(text(words, x + 27, y))
            x += wide + 12
    return parts, y + 16


def _line(
    name: str, steps: np.ndarray, values: np.ndarray, x: Axis, y: Axis, number: int, *, marked: bool
) -> list[str]:
    kept = _thinned(values)
    across, up = x.place(steps[kept]), y.place(values[kept])
    there = np.isfinite(across) & np.isfinite(up)
    begins = there & ~np.concatenate([[False], there[:-1]])
    pieces = [
        f"{'M' if begin else 'L'}{a:.1f} {b:.1f}"
        for a, b, begin in zip(across[there], up[there], begins[there], strict=True)
    ]
    path = (
        f'<path class="line" d="{"".join(pieces)}" fill="none" stroke-width="2" stroke-linejoin="round" '
        f'stroke-dasharray="{_dash(number)}"/>'
    )
    points = (
        f'<circle class="point" cx="{a:.1f}" cy="{b:.1f}" r="3" stroke="none"><title>'
        f"{escape(name)}, step {step:,.10g}: {value:.5g}</title></circle>"
        for a, b, step, value in zip(across[there], up[there], steps[kept][there], values[kept][there], strict=True)
        if marked
    )
    return [coloured(number, path, *points)] if there.any() else []


def _thinned(values: np.ndarray) -> np.ndarray:
    """Indices of the points that are drawn: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(values) <= MOST_POINTS:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), MOST_POINTS // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for first, last in pairwise(edges):
        stretch = values[first:last]
        if np.isfinite(stretch).any():
            kept |= {first + int(np.nanargmin(stretch)), first + int(np.nanargmax(stretch))}
        else:
            kept.add(int(first))
    return np.array(sorted(kept))

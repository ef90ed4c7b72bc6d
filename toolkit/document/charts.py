"""Line charts as inline SVG, cheap enough for the smallest run.

A report has about seven charts. For each, matplotlib takes 28 ms and writes 14 kB, plus 0.4 s for its import (CPU
time); this module takes 0.7 ms and writes 4.5 kB. Points show their values on hover, and colours follow the page's
light or dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain, pairwise

import numpy as np

from toolkit.document.axis import Axis, axis
from toolkit.document.svg import COLOURS, LETTER, WIDTH, Drawing, coloured, text

PLOT_HEIGHT, ROW = 200, 18
RIGHT, BOTTOM = WIDTH - 14, 40
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "12 4")
"""Dash patterns, by which lines differ for readers who do not see colours."""
MOST_POINTS = 400
"""Maximum number of points drawn per line; of longer lines, the lowest and highest point of each interval is drawn."""
MOST_MARKED = 60
"""Maximum number of points of a chart in which points are marked and show their value."""

Line = tuple[Sequence[float | None], Sequence[float | None]]
"""Steps and values of a line's points; None and NaN are missing values and leave a gap."""


def line_chart(
    series: Mapping[str, Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    zero: bool = False,
    log_x: bool = False,
    whole: bool = True,
    point: str = "step",
    thin: Mapping[str, Sequence[Line]] | None = None,
) -> Drawing:
    """Draws lines over steps.

    Args:
        series: lines by name.
        title: description of the chart, for screen readers.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis, with the unit.
        log: whether the vertical axis is logarithmic.
        zero: whether the vertical axis begins at 0.
        log_x: whether the horizontal axis is logarithmic.
        whole: whether the horizontal axis counts, unless it is logarithmic.
        point: word before a point's horizontal value, where it is shown.
        thin: further lines by the name of the line that they belong to, for instance as its mean; they have its colour.

    Returns:
        The chart, with every text escaped. The legend states the number of missing values of each line.
    """
    lines = {name: (_array(xs), _array(values)) for name, (xs, values) in series.items()}
    further = {name: [(_array(x), _array(y)) for x, y in (thin or {}).get(name, ())] for name in lines}
    shown = [*lines.values(), *chain.from_iterable(further.values())]
    every = [np.concatenate([each[i] for each in shown] or [np.empty(0)]) for i in (0, 1)]
    legend, top = _legend(lines, y_label)
    y = axis(every[1], top + PLOT_HEIGHT, top, log=log, zero=zero)
    left = 16 + LETTER * max((len(name) for _, name in y.ticks), default=0)
    x = axis(every[0], left, RIGHT, log=log_x, whole=whole and not log_x)
    marked = sum(len(xs) for xs, _ in lines.values()) <= MOST_MARKED
    faint = 'stroke-width="1" stroke-opacity="0.4" stroke-linejoin="round"'
    drawn = [
        part
        for number, (name, several) in enumerate(further.items())
        for line in several
        for part in _line(name, *line, x, y, number, faint, at=None)
    ]
    for number, (name, line) in enumerate(lines.items()):
        style = f'stroke-width="2" stroke-linejoin="round" stroke-dasharray="{_dash(number)}"'
        drawn += _line(name, *line, x, y, number, style, at=("at" if log_x else point) if marked else None)
    return Drawing([*frame(x, y, x_label), *legend, *drawn], title, round(top + PLOT_HEIGHT + BOTTOM))


def frame(x: Axis, y: Axis, x_label: str) -> list[str]:
    """Returns the SVG elements of the grid, the ticks and the label of the horizontal axis."""
    parts = []
    for place, (_, name) in zip(y.place(_array([value for value, _ in y.ticks])), y.ticks, strict=True):
        parts.append(
            f'<line class="grid" stroke="#ccc" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{place:.1f}" y2="{place:.1f}"/>'
        )
        parts.append(text(name, x.start - 6, place + 4.5, "end"))
    for place, (_, name) in zip(x.place(_array([value for value, _ in x.ticks])), x.ticks, strict=True):
        parts.append(text(name, min(place, WIDTH - LETTER * len(name) / 2), y.start + 17, "middle"))
    return [*parts, text(x_label, (x.start + x.end) / 2, y.start + 34, "middle")]


def _array(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _dash(number: int) -> str:
    """Returns the dash pattern of a line; when colours repeat, the patterns differ."""
    return DASHES[(number + number // len(COLOURS)) % len(DASHES)]


def _legend(lines: Mapping[str, tuple[np.ndarray, np.ndarray]], y_label: str) -> tuple[list[str], float]:
    """Returns the label of the vertical axis and the legend, as SVG elements, and the top of the plot in pixels."""
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
    name: str, steps: np.ndarray, values: np.ndarray, x: Axis, y: Axis, number: int, style: str, *, at: str | None
) -> list[str]:
    kept = thinned(values)
    across, up = x.place(steps[kept]), y.place(values[kept])
    there = np.isfinite(across) & np.isfinite(up)
    begins = there & ~np.concatenate([[False], there[:-1]])
    pieces = [
        f"{'M' if begin else 'L'}{a:.1f} {b:.1f}"
        for a, b, begin in zip(across[there], up[there], begins[there], strict=True)
    ]
    path = f'<path class="line" d="{"".join(pieces)}" fill="none" {style}/>'
    points = (
        f'<circle class="point" cx="{a:.1f}" cy="{b:.1f}" r="3" stroke="none"><title>'
        f"{escape(name)}, {at} {step:,.10g}: {value:.5g}</title></circle>"
        for a, b, step, value in zip(across[there], up[there], steps[kept][there], values[kept][there], strict=True)
        if at is not None
    )
    return [coloured(number, path, *points)] if there.any() else []


def thinned(values: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Returns the indices of the points to draw: the lowest and the highest of each interval, so no peak is lost.

    Args:
        values: `[N]` values.
        most: number of points up to which all are drawn; of more, about as many with the first and the last.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for first, last in pairwise(edges):
        stretch = values[first:last]
        if np.isfinite(stretch).any():
            kept |= {first + int(np.nanargmin(stretch)), first + int(np.nanargmax(stretch))}
        else:
            kept.add(int(first))
    return np.array(sorted(kept))

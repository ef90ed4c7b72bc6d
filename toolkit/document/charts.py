"""Line charts, histograms and colour ramps as inline SVG, cheap enough for the smallest run.

A report has about seven charts. For each, matplotlib takes 28 ms and writes 14 kB, plus 0.4 s for its import (CPU
time); this module takes 0.7 ms and writes 4.5 kB. Points show their values on hover, and colours follow the page's
light or dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, pairwise

import numpy as np

from toolkit.base.console import format_value
from toolkit.document.svg import COLOURS, LETTER, WIDTH, Drawing, coloured, text


@dataclass(frozen=True)
class Axis:
    """An axis, which maps the values from `low` to `high` to the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Returns the pixels, `[N]`, of values, `[N]`; NaN for missing values and those without a logarithm."""
        low, high = self.low, self.high
        if self.log:
            values = np.log10(np.where(values > 0, values, np.nan))
            low, high = math.log10(low), math.log10(high)
        return self.start + (values - low) / (high - low) * (self.end - self.start)


def axis(
    values: np.ndarray, start: float, end: float, *, log: bool = False, zero: bool = False, whole: bool = False
) -> Axis:
    """Returns an axis that covers all finite values.

    Args:
        values: `[N]` values; values that are not finite are ignored.
        start: pixel of its start.
        end: pixel of its end.
        log: whether it is logarithmic; ignored if no value is above 0.
        zero: whether it begins at 0.
        whole: whether values are counts: ticks are integers, and there is no margin.
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
    """Returns ticks at multiples of 1, 2 or 5 times a power of ten."""
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
    """Returns the label of a tick; the distance to the next one, `step`, determines the number of digits."""
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
    """Returns the indices of about `most` of `[N]` points: the lowest and the highest of each interval."""
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


TOP = 30.0


def histogram_chart(
    edges: Sequence[float], counts: Sequence[int], *, title: str, x_label: str, limit: float | None = None
) -> Drawing:
    """Draws a histogram of `[B]` counts between `[B + 1]` edges; a line marks `limit` if it is within the edges.

    The title is for screen readers; `x_label` has the unit.
    """
    y = axis(np.asarray(counts, dtype=float), TOP + PLOT_HEIGHT, TOP, zero=True)
    left = 16 + LETTER * max((len(name) for _, name in y.ticks), default=0)
    x = axis(np.asarray(edges, dtype=float), left, RIGHT)
    sides, tops = x.place(np.asarray(edges, dtype=float)), y.place(np.asarray(counts, dtype=float))
    bars = [
        f'<rect x="{a + 0.5:.1f}" y="{top:.1f}" width="{max(b - a - 1, 0.5):.1f}" height="{y.start - top:.1f}" '
        f'stroke="none"><title>{escape(f"{low:,.5g} to {high:,.5g}: {count:,}")}</title></rect>'
        for a, b, top, low, high, count in zip(sides, sides[1:], tops, edges, edges[1:], counts, strict=False)
        if count
    ]
    parts = [*frame(x, y, x_label), text("rows", 2, 14, kind="ink"), coloured(0, *bars)]
    if limit is not None and edges[0] <= limit <= edges[-1]:
        place = float(x.place(np.asarray([limit]))[0])
        parts.append(coloured(1, f'<line stroke-width="2" stroke-dasharray="5 4" x1="{place:.1f}" x2="{place:.1f}" '
                                 f'y1="{TOP:.1f}" y2="{y.start:.1f}"/>'))  # fmt: skip
        shift, anchor = (-6, "end") if place > (left + RIGHT) / 2 else (6, "start")
        parts.append(text(f"limit {limit:g}", place + shift, TOP + 12, anchor))
    return Drawing(parts, title, round(TOP + PLOT_HEIGHT + BOTTOM))


RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""RGB colours from the worst to the best metric (viridis, which also differ in lightness)."""


def colours(scores: Sequence[float | None], metric: str | None, greater: bool) -> tuple[list[str], list[str]]:
    """Returns a colour for each score, grey for missing ones, and the legend as SVG elements."""
    known = [score for score in scores if score is not None]
    if metric is None or not known:
        return ["#888888"] * len(scores), []
    low, high = min(known), max(known)
    worst, best = (low, high) if greater else (high, low)
    shares = [None if s is None else (s - worst) / (best - worst) if best != worst else 1.0 for s in scores]
    name = metric.removeprefix("eval_").replace("_", " ")
    words = f"{name} {format_value(best)}" if best == worst else f"{name} {format_value(worst)}"
    legend = [text(words, 2, 14 + ROW, kind="ink")]
    begin = 14 + LETTER * len(words)
    if best != worst:
        legend += [
            f'<rect x="{begin + 7 * i:.0f}" y="{4 + ROW}" width="7" height="11" fill="{ramp(i / 11)}"/>'
            for i in range(12)
        ]
        legend.append(text(format_value(best), begin + 92, 14 + ROW, kind="ink"))
    return ["#888888" if share is None else ramp(share) for share in shares], legend


def ramp(share: float) -> str:
    """Returns the colour of a score, from 0 (the worst) to 1 (the best)."""
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    first = min(int(place), len(RAMP) - 2)
    mixed = (a + (b - a) * (place - first) for a, b in zip(RAMP[first], RAMP[first + 1], strict=True))
    return "#" + "".join(f"{round(value):02x}" for value in mixed)

"""Draws the charts of a search: values of the trials, parallel coordinates, evaluations, and importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any

import numpy as np

from toolkit.base.console import format_value, shorten
from toolkit.document.charts import BOTTOM, PLOT_HEIGHT, RIGHT, ROW, Line, axis, colours, frame, line_chart, number_text
from toolkit.document.svg import LETTER, WIDTH, Drawing, coloured, text

BAR, GAP = 16, 42
"""Height of a bar, and distance of two bars."""
NAME = 46
"""Most letters of a setting's name."""


def values(rows: Sequence[Mapping[str, Any]], metric: str, greater: bool) -> Drawing:
    """Draws the value of each trial, and the best one so far as a line."""
    found = [(row["number"], row["value"]) for row in rows if row["value"] is not None]
    numbers, scores = np.array([n for n, _ in found], dtype=float), np.array([v for _, v in found], dtype=float)
    ended = [(n, v) for row, (n, v) in zip([r for r in rows if r["value"] is not None], found, strict=True)
             if row["state"] in ("finished", "repeated")]  # fmt: skip
    y = axis(scores, 30 + PLOT_HEIGHT, 30)
    left = 16 + LETTER * max((len(name) for _, name in y.ticks), default=0)
    x = axis(numbers, left, RIGHT - 8, whole=True)
    parts = [text(f"{metric}, line: the best so far", 2, 14, kind="ink"), *frame(x, y, "trial")]
    if ended:
        best = list(accumulate((v for _, v in ended), max if greater else min))
        places = zip(x.place(np.array([n for n, _ in ended], dtype=float)), y.place(np.array(best)), strict=True)
        (first_x, first_y), *rest = places
        path = f"M{first_x:.1f} {first_y:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in rest)
        parts.append(coloured(0, f'<path class="line" d="{path}" fill="none" stroke-width="2"/>'))
    for number, score, a, b in zip(numbers, scores, x.place(numbers), y.place(scores), strict=True):
        words = f"trial {number:.0f}: {format_value(float(score))}"
        circle = f'<circle class="point" cx="{a:.1f}" cy="{b:.1f}" r="4" stroke="none"><title>{words}</title></circle>'
        parts.append(coloured(1, circle))
    return Drawing(parts, "Value of each trial", 30 + PLOT_HEIGHT + BOTTOM)


def coordinates(
    rows: Sequence[Mapping[str, Any]], space: Mapping[str, Mapping[str, Any]], metric: str, greater: bool
) -> Drawing:
    """Draws each trial that has a value as a line through its settings, with the colour of its value."""
    rows = sorted(rows, key=lambda row: row["value"] if greater else -row["value"])  # the best lines are on top
    shades, legend = colours([row["value"] for row in rows], metric, greater)
    top, bottom = 28 + 2 * ROW, 28 + 2 * ROW + PLOT_HEIGHT
    places = np.linspace(24, WIDTH - 24, len(space)) if len(space) > 1 else np.array([WIDTH / 2])
    parts = [text("settings of each trial; colour: its value", 2, 14, kind="ink"), *legend]
    heights = {key: _heights(rows, key, dimension, bottom, top) for key, dimension in space.items()}
    for place, (key, dimension) in zip(places, space.items(), strict=True):
        parts += _axis(place, key, dimension, bottom, top, list(space).index(key), len(space))
    for number, (row, shade) in enumerate(zip(rows, shades, strict=True)):
        up = [heights[key][number] for key in space]
        points = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(places, up, strict=True))
        words = ", ".join([f"trial {row['number']}: {format_value(float(row['value']))}", *row["overrides"]])
        title = f"<title>{escape(words)}</title>"
        parts.append(f'<path d="M{points}" fill="none" stroke="{shade}" stroke-width="2">{title}</path>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{shade}">{title}</circle>'
                  for a, b in zip(places, up, strict=True)]  # fmt: skip
    height = bottom + 40 + ROW * len(space)
    return Drawing(parts, "Settings and value of each trial", height)


def _heights(
    rows: Sequence[Mapping[str, Any]], key: str, dimension: Mapping[str, Any], bottom: float, top: float
) -> list[float]:
    """Returns the vertical positions of the trials on an axis."""
    if choices := dimension["choices"]:
        step = (bottom - top) / max(1, len(choices) - 1)
        return [bottom - step * choices.index(row["params"][key]) for row in rows]
    found, low, high = [float(row["params"][key]) for row in rows], dimension["low"], dimension["high"]
    if dimension["log"]:
        found, low, high = [math.log(each) for each in found], math.log(low), math.log(high)
    return [bottom - (each - low) / (high - low) * (bottom - top) for each in found]


def _axis(
    place: float, key: str, dimension: Mapping[str, Any], bottom: float, top: float, number: int, count: int
) -> list[str]:
    """Returns an axis, its ends, its number, and below the chart its name."""
    anchor = "start" if number == 0 else "end" if number == count - 1 and count > 1 else "middle"
    at = place - 8 if anchor == "start" else place + 8 if anchor == "end" else place
    low, high = (_end(dimension, end) for end in ("low", "high"))
    return [
        f'<line class="grid" stroke="#ccc" x1="{place:.1f}" x2="{place:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>',
        text(high, at, top - 7, anchor),
        text(low, at, bottom + 17, anchor),
        text(str(number + 1), place, bottom + 34, "middle", "ink"),
        text(f"{number + 1}  {shorten(key, NAME)}{' (log)' if dimension['log'] else ''}", 2, bottom + 34
             + ROW * (number + 1)),
    ]  # fmt: skip


def _end(dimension: Mapping[str, Any], end: str) -> str:
    if dimension["choices"]:
        return shorten(str(dimension["choices"][0 if end == "low" else -1]), 12)
    value = dimension[end]
    return number_text(value, abs(value)) if dimension["log"] else f"{value:g}"


def curves(rows: Sequence[Mapping[str, Any]], best: int | None, metric: str) -> Drawing:
    """Draws the evaluations of trials that have several; the best trial has a thick line."""
    lines: dict[int, Line] = {
        row["number"]: (list(range(1, len(row["evaluations"]) + 1)), [value for _, value in row["evaluations"]])
        for row in rows
    }
    chosen = best if best in lines else next(iter(lines))
    name = f"trial {chosen}" + (" (the best)" if chosen == best else "")
    others = [line for number, line in lines.items() if number != chosen]
    return line_chart(
        {name: lines[chosen]}, title="Evaluations of the trials", x_label="evaluation", y_label=metric,
        thin={name: others},
    )  # fmt: skip


def importances(found: Mapping[str, float]) -> Drawing:
    """Draws the importance of each setting as a bar."""
    parts, top = [text("part of the variance of the values", 2, 14, kind="ink")], 26
    for place, (key, share) in enumerate(found.items()):
        y = top + GAP * place
        parts.append(text(f"{shorten(key, NAME)}  {share:.0%}", 2, y + 13))
        size = f'x="2" y="{y + 19}" width="{max(1.0, (RIGHT - 2) * share):.1f}" height="{BAR}"'
        parts.append(coloured(0, f'<rect class="point" {size}><title>{escape(key)}: {share:.1%}</title></rect>'))
    return Drawing(parts, "Importance of each setting", top + GAP * len(found))

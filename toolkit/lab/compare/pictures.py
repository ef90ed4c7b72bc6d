"""Draws the charts of a comparison: memory against time coloured by the metric, memory by part, and losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from toolkit.base.console import format_bytes, shorten
from toolkit.document.charts import BOTTOM, PLOT_HEIGHT, RIGHT, ROW, Axis, Line, axis, colours, frame, line_chart
from toolkit.document.svg import LETTER, WIDTH, Drawing, coloured, text
from toolkit.lab.compare import statistics
from toolkit.system.memory import MEMORY

PARTS = {part: MEMORY[part] for part in statistics.PARTS}
"""Titles of the parts of memory that are drawn."""
BAR, GAP = 20, 30 + ROW
MAX_NAME_LETTERS = 44
"""Maximum length of a name in a legend."""

TITLES = {"trade_off": "Memory against time", "memory": "What memory is made of", "loss": "Training loss"}
"""Titles of all charts by name."""


def draw(
    variants: Sequence[Mapping[str, Any]], numbers: Sequence[int], metric: Mapping[str, Any]
) -> dict[str, Drawing]:
    """Draws all charts, by the names in `TITLES`, of variants that have `figures`, with their numbers as labels.

    The metric has its `name` and whether `greater_is_better`, or is empty.
    """
    name, greater = metric.get("name"), bool(metric.get("greater_is_better"))
    return {
        "trade_off": trade_off(variants, numbers, name, greater),
        "memory": memory_parts(variants, numbers),
        "loss": losses(variants, numbers),
    }


def trade_off(
    variants: Sequence[Mapping[str, Any]], numbers: Sequence[int], metric: str | None, greater: bool
) -> Drawing:
    """Draws peak memory against step time; the metric gives the colour, a dashed line shows the Pareto front."""
    names = ("step_seconds", "train_peak")
    figures = [[variant["figures"][name] for name in names] for variant in variants]
    ends = [[value for figure in pair for value in _interval(figure)] for pair in zip(*figures, strict=True)]
    top = 16 + 2 * ROW
    y = axis(np.array(ends[1]) / 2**20, top + PLOT_HEIGHT, top, zero=_from_zero(ends[1]))
    x = axis(
        np.array(ends[0]) * 1000,
        16 + LETTER * max(len(name) for _, name in y.ticks),
        RIGHT - 12,
        zero=_from_zero(ends[0]),
    )
    parts = [text("peak memory, MiB above the memory used before the model", 2, 14, kind="ink")]
    scores = [variant["figures"][metric]["value"] if metric in variant["figures"] else None for variant in variants]
    shades, legend = colours(scores, metric, greater)
    places = [(float(x.place(np.array([t["value"] * 1000]))[0]), float(y.place(np.array([m["value"] / 2**20]))[0]))
              for t, m in figures]  # fmt: skip
    parts += [*legend, *frame(x, y, "step time, ms"), *_front(figures, places)]
    for variant, number, pair, (across, up), shade in zip(variants, numbers, figures, places, shades, strict=True):
        parts += _whiskers(pair, x, y, across, up)
        words = f"{number} {variant['name']}: {format_bytes(pair[1]['value'])}, {1000 * pair[0]['value']:.3g} ms"
        parts.append(
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="8" fill="{shade}" stroke="currentColor"><title>'
            f"{escape(words)}</title></circle>"
        )
    for number, (across, up, anchor) in zip(numbers, _free_places(places), strict=True):
        parts.append(text(str(number), across, up, anchor, "ink"))
    bottom = top + PLOT_HEIGHT + BOTTOM
    for row, (variant, number) in enumerate(zip(variants, numbers, strict=True), start=1):
        parts.append(text(_named(variant, number), 2, bottom + ROW * row - 4))
    return Drawing(parts, "Peak memory against step time of each variant", bottom + ROW * len(variants))


def _free_places(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, str]]:
    """Returns position and text anchor of each point's label, away from other points and labels."""
    found: list[tuple[float, float, str]] = []
    for number, (across, up) in enumerate(points):
        others = [*points[:number], *points[number + 1 :], *((x, y) for x, y, _ in found)]

        def room(place: tuple[float, float], others: Sequence[tuple[float, float]] = others) -> float:
            return min([16.0, *(math.dist(place, other) for other in others)])

        best = max([(across + dx, up + dy) for dx in (13, -13) for dy in (-5, 15)], key=room)
        found.append((*best, "start" if best[0] > across else "end"))
    return found


def _from_zero(values: Sequence[float]) -> bool:
    """Returns whether an axis begins at 0; it does not if all values would be in its upper half."""
    return min(values) < max(values) / 2


def _front(figures: Sequence[Sequence[Mapping[str, Any]]], places: Sequence[tuple[float, float]]) -> list[str]:
    """Draws the Pareto front of memory and time as a staircase."""
    best = statistics.pareto([(time["value"], memory["value"]) for time, memory in figures])
    front = sorted({place for place, kept in zip(places, best, strict=True) if kept})
    if len(front) < 2:
        return []
    path = f"M{front[0][0]:.1f} {front[0][1]:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in front[1:])
    return [f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.5" stroke-dasharray="4 4"/>']


def _whiskers(pair: Sequence[Mapping[str, Any]], x: Axis, y: Axis, across: float, up: float) -> list[str]:
    left, right = x.place(np.array(_interval(pair[0])) * 1000)
    low, high = y.place(np.array(_interval(pair[1])) / 2**20)
    path = f"M{left:.1f} {up:.1f}H{right:.1f}M{across:.1f} {low:.1f}V{high:.1f}"
    return [f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>']


def _interval(figure: Mapping[str, Any]) -> tuple[float, float]:
    return (figure["value"],) * 2 if figure["low"] is None else (figure["low"], figure["high"])


def memory_parts(variants: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> Drawing:
    """Draws the peak memory of each variant by part, as stacked bars."""
    parts, left, line = [text("peak memory by part, MiB", 2, 14, kind="ink")], 2.0, 1
    for series, title in enumerate(PARTS.values()):
        if left > 2 and left + 17 + LETTER * len(title) > WIDTH:
            left, line = 2.0, line + 1
        parts.append(_box(series, left, 4 + ROW * line, 12, 12))
        parts.append(text(title, left + 17, 14 + ROW * line))
        left += 33 + LETTER * len(title)
    top = 12 + ROW * (line + 1)
    bottom = top + GAP * len(variants)
    peaks = np.array([sum(variant["memory"].values()) for variant in variants]) / 2**20
    scale = axis(peaks, 30, RIGHT - 12, zero=True)
    for row, (variant, number) in enumerate(zip(variants, numbers, strict=True)):
        begin, y = 0.0, top + GAP * row
        parts.append(text(_named(variant, number), 30, y + 14, kind="ink"))
        for series, (part, title) in enumerate(PARTS.items()):
            end = begin + variant["memory"][part] / 2**20
            x0, x1 = scale.place(np.array([begin, end]))
            words = f"{number} {variant['name']}, {title}: {format_bytes(variant['memory'][part])}"
            parts.append(_box(series, x0, y + ROW, x1 - x0, BAR, words))
            begin = end
    for place, (_, name) in zip(scale.place(np.array([v for v, _ in scale.ticks])), scale.ticks, strict=True):
        parts.append(text(name, place, bottom + 12, "middle"))
    return Drawing(parts, "Peak memory of each variant by part", bottom + 20)


def _box(series: int, x: float, y: float, width: float, height: float, words: str = "") -> str:
    """Draws a rectangle in the colour of a series, with `words` as its tooltip."""
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return coloured(series, f'<rect class="point" {size}><title>{escape(words)}</title></rect>')


def losses(variants: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> Drawing:
    """Draws the training loss of each variant: the mean over its seeds and, as thin lines, each seed."""
    lines: dict[str, Line] = {}
    thin: dict[str, list[Line]] = {}
    for variant, number in zip(variants, numbers, strict=True):
        name = _named(variant, number)
        lines[name] = _line(variant["loss"])
        thin[name] = [_line(curve) for curve in variant.get("losses", ())]
    title = "Training loss of each variant"
    return line_chart(lines, title=title, x_label="optimizer step", y_label="training loss", thin=thin)


def _named(variant: Mapping[str, Any], number: int) -> str:
    return shorten(f"{number} {variant['name']}", MAX_NAME_LETTERS)


def _line(curve: Sequence[Sequence[float]]) -> Line:
    return [step for step, _ in curve], [loss for _, loss in curve]


def growth(rows: Mapping[str, Any], name: str, score: Mapping[str, Any]) -> Drawing:
    """Draws a score over the number of training rows; the power law and the intervals are thin lines."""
    counts, label = rows["rows"], "training rows"
    thin: list[Line] = [([count] * 2, ends) for count, ends in zip(counts, score["ends"], strict=True) if ends]
    if not score["reason"]:
        (a, b, c), places = score["law"], np.geomspace(counts[0], counts[-1] + rows["more"])
        thin.append((places.tolist(), (a + b * places**-c).tolist()))
    line = {name: (counts, score["means"])}
    return line_chart(line, thin={name: thin}, title=f"{name} over {label}", x_label=label, y_label=name, point="rows")

"""Colours of scores in charts, from the worst to the best."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.base.console import format_value
from toolkit.document.charts import ROW
from toolkit.document.svg import LETTER, text

RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""RGB colours from the worst to the best metric (viridis, which also differ in lightness)."""


def colours(scores: Sequence[float | None], metric: str | None, greater: bool) -> tuple[list[str], list[str]]:
    """Returns a colour for each score, grey for missing ones, and the legend as SVG elements.

    Args:
        scores: the scores, None for missing ones.
        metric: their name, or None for no colours.
        greater: whether a greater score is better.
    """
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

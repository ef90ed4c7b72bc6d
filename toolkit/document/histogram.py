"""Histograms as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from toolkit.document.axis import axis
from toolkit.document.charts import BOTTOM, PLOT_HEIGHT, RIGHT, frame
from toolkit.document.svg import LETTER, Drawing, coloured, text

TOP = 30.0


def histogram_chart(
    edges: Sequence[float], counts: Sequence[int], *, title: str, x_label: str, limit: float | None = None
) -> Drawing:
    """Draws a histogram.

    Args:
        edges: `[B + 1]` edges of the bins.
        counts: `[B]` number of values in each bin.
        title: description of the chart, for screen readers.
        x_label: label of the horizontal axis, with the unit.
        limit: a value to mark with a line, if it is within the edges.
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
        near_end = place > (left + RIGHT) / 2
        parts.append(
            text(f"limit {limit:g}", place + (-6 if near_end else 6), TOP + 12, "end" if near_end else "start")
        )
    return Drawing(parts, title, round(TOP + PLOT_HEIGHT + BOTTOM))

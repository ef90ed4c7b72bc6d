"""Plots drawn with matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np

from toolkit.base.console import shorten
from toolkit.document.charts import Line

INK = "#333333"
MOST_NAMED_CLASSES, MOST_LETTERS = 40, 24
MOST_COUNTED_CLASSES = 15
"""Largest number of classes whose confusion matrix shows its counts."""


def curves(charts: Sequence[tuple[str, str, Mapping[str, Line]]]) -> bytes:
    """Plots curves over the steps of a run, two per row, as PNG; a chart is a title, a label and lines by name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(charts) // 2)
    figure = Figure(figsize=(10, 2.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, 2, squeeze=False).flat
    for (title, label, lines), axes in zip(charts, grid, strict=False):
        for name, (steps, values) in lines.items():
            numbers = [math.nan if value is None else value for value in values]
            axes.plot(steps, numbers, marker=".", markersize=3, label=name.replace("$", r"\$"))
        axes.set_title(title.replace("$", r"\$"), color=INK, loc="left")
        axes.set_ylabel(fill(label.replace("$", r"\$"), 24), color=INK)
        axes.set_xlabel("optimizer step", color=INK)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            axes.legend(fontsize="small", frameon=False)
    for axes in grid:  # what is left of the last row
        axes.set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=100, format="png")
    return picture.getvalue()


def confusion(counts: np.ndarray, labels: Sequence[str]) -> bytes:
    """Plots a confusion matrix `[true, predicted]` as PNG; the shade is the share of the true class."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(10.0, 2.5 + 0.45 * len(labels))
    figure = Figure(figsize=(side, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(labels) <= MOST_NAMED_CLASSES:
        names = [shorten(label, MOST_LETTERS).replace("$", r"\$") for label in labels]  # not mathtext
        axes.set_xticks(range(len(labels)), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(len(labels)), names)
    if len(labels) <= MOST_COUNTED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            ink = "white" if shares[row, column] > 0.5 else INK
            axes.text(column, row, f"{int(count):,}", ha="center", va="center", color=ink, fontsize="small")
    axes.set_xlabel("predicted", color=INK)
    axes.set_ylabel("true", color=INK)
    picture = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # about glyphs that are missing in the font
        figure.savefig(picture, dpi=120, format="png")
    return picture.getvalue()

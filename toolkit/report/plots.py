"""Pictures of a run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.console import shorten

INK, TRAIN, EVAL, METRIC = "#333333", "#1f77b4", "#d62728", "#2ca02c"
MOST_NAMED_CLASSES, MOST_COUNTED_CLASSES, MOST_LETTERS = 40, 15, 24


def _series(history: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    points = [(line["step"], line[name]) for line in history if name in line]
    return [step for step, _ in points], [value for _, value in points]


def loss_and_metric(history: Sequence[Mapping[str, Any]], metric: str, path: Path) -> None:
    """Draws the training and evaluation loss, and below it the metric, over the steps.

    Args:
        history: lines of `metrics.jsonl`.
        metric: the metric that names the best model.
        path: the PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: list[dict[str, str]] = [{"loss": TRAIN, "eval_loss": EVAL}]
    if metric not in panels[0] and len(_series(history, metric)[0]) > 1:
        panels.append({metric: METRIC})
    figure = Figure(figsize=(7, 2.6 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, names in zip(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels, strict=True):
        for name, colour in names.items():
            steps, values = _series(history, name)
            if steps:
                marker = "o" if len(steps) <= 30 else None
                axes.plot(steps, values, color=colour, label=name.replace("_", " "), marker=marker, markersize=3.5)
        axes.set_ylabel(next(iter(names)).replace("eval_", "").replace("_", " "), color=INK)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    figure.axes[-1].set_xlabel("optimizer step", color=INK)
    figure.savefig(path, dpi=120)


def learning_rate(steps: Sequence[int], rates: Sequence[float], title: str, path: Path) -> None:
    """Draws the learning rate over the steps.

    Args:
        steps: numbers of steps, from 1.
        rates: the rate of each.
        title: the schedule's name.
        path: the picture to write; its ending says in which format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(steps, rates, color=TRAIN)
    axes.set_title(title, color=INK, loc="left")
    axes.set_ylabel("learning rate", color=INK)
    axes.set_xlabel("optimizer step", color=INK)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def confusion(counts: np.ndarray, labels: Sequence[str], path: Path) -> None:
    """Draws how often each true class was taken for which; the shade is the share of the true class.

    Args:
        counts: `[classes, classes]`, true by predicted.
        labels: names of the classes.
        path: the PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(10.0, 2.5 + 0.45 * len(labels))
    figure = Figure(figsize=(side, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(labels) <= MOST_NAMED_CLASSES:
        names = [shorten(label, MOST_LETTERS).replace("$", r"\$") for label in labels]  # no formulas
        axes.set_xticks(range(len(labels)), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(len(labels)), names)
    if len(labels) <= MOST_COUNTED_CLASSES:
        for (true, predicted), count in np.ndenumerate(counts):
            colour = "white" if shares[true, predicted] > 0.6 else INK
            axes.text(predicted, true, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xlabel("predicted", color=INK)
    axes.set_ylabel("true", color=INK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font does not have
        figure.savefig(path, dpi=120)

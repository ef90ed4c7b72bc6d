"""Pictures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INK, TRAIN, EVAL, METRIC = "#333333", "#1f77b4", "#d62728", "#2ca02c"


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

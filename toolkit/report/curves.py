"""Plots the metrics of a run over its steps, from the lines of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.document.blocks import Figure
from toolkit.document.charts import Line, line_chart

MOST_METRICS = 4
"""Largest number of metrics to plot, starting with the one that selects the best model."""
MIB = 2**20

History = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Chart:
    """Named lines over the steps of a run; `zero` is whether the vertical axis begins at 0."""

    title: str
    lines: Mapping[str, Line]
    label: str
    zero: bool = False

    @property
    def figure(self) -> Figure:
        """The chart as a drawing."""
        title = f"{self.title} over the steps"
        chart = line_chart(self.lines, title=title, x_label="optimizer step", y_label=self.label, zero=self.zero)
        return Figure(self.title, chart)


def charts(history: History, metric: str) -> list[Chart]:
    """Returns charts of losses, metrics, learning rate, gradient norm, speed and memory with two points or more."""
    losses = {"training": _line(history, "loss"), "validation": _line(history, "eval_loss")}
    found = [_chart("Loss", losses, "mean loss per item")] if any(map(_is_curve, losses.values())) else []
    names = dict.fromkeys([metric, *(name for line in history for name in line if name.startswith("eval_"))])
    drawn = [(name, line) for name in names if name != "eval_loss" and _is_curve(line := _line(history, name))]
    found += [
        _chart(f"{_words(name)} (validation)", {_words(name): line}, _words(name))
        for name, line in drawn[:MOST_METRICS]
    ]
    for name, title, label, unit in (
        ("learning_rate", "Learning rate", "learning rate", 1),
        ("grad_norm", "Gradient norm", "norm before clipping", 1),
        ("interval_items_per_second", "Speed", "items per second since the previous point", 1),
        ("peak_memory_bytes", "Peak memory so far", "MiB, main process", MIB),
    ):
        line = _line(history, name, unit)
        if _is_curve(line):
            found.append(_chart(title, {title.lower(): line}, label, zero=name != "grad_norm"))
    return found


def _is_curve(line: Line) -> bool:
    return len(line[0]) > 1


def _words(name: str) -> str:
    return name.removeprefix("eval_").replace("_", " ")


def _line(history: History, name: str, unit: int = 1) -> Line:
    points = [(line["step"], line[name]) for line in history if name in line]
    return [step for step, _ in points], [None if value is None else value / unit for _, value in points]


def _chart(title: str, lines: Mapping[str, Line], label: str, zero: bool = False) -> Chart:
    kept = {name: line for name, line in lines.items() if line[0]}
    return Chart(title[:1].upper() + title[1:], kept, label, zero)

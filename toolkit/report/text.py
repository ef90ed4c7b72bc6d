"""Formats metrics and predictions as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.api.run import FitResult
from toolkit.api.task import Description, Task
from toolkit.base.console import format_bytes, format_duration, format_value, shorten
from toolkit.metrics.measured import MEASURED
from toolkit.metrics.quality import Quality
from toolkit.metrics.score import without_classes


def readable(figures: Mapping[str, Any]) -> dict[str, str]:
    """Formats metrics: memory with units such as MiB, counts with commas; None is omitted."""
    shown = {}
    for name, value in figures.items():
        if value is None:
            continue
        if name in MEASURED and MEASURED[name].unit == "B":
            shown[name.removesuffix("_bytes")] = format_bytes(value)  # the value includes its unit
        elif isinstance(value, int):
            shown[name] = f"{value:,}"
        else:
            shown[name] = format_value(value)
    return shown


def prefix_of(name: str) -> str:
    """Returns the prefix of the metrics of an evaluation set."""
    return "eval_" if name == "validation" else f"{name}_"


def scores(result: FitResult, task: Task) -> list[tuple[str, str, str, str]]:
    """Returns the scores of all evaluation sets, without those of single classes, the one to trust first.

    Args:
        result: the result of the training.
        task: the task, for its scores.

    Returns:
        Rows of name, value, 95 % interval, and value of the constant answer; empty where there is none.
    """
    rows = []
    for name, evaluation in result.evaluations.items():
        quality = result.quality.get(name, Quality())
        metrics = readable(without_classes(evaluation.metrics, task.scores))
        first = quality.trusted or task.best_metric
        for metric in sorted(metrics, key=lambda metric: (metric != first, metric == "loss")):
            baseline = quality.baseline.get(metric)
            constant = "" if baseline is None else format_value(baseline)
            rows.append((prefix_of(name) + metric, metrics[metric], interval(quality, metric), constant))
    return rows


def interval(quality: Quality, metric: str) -> str:
    """Returns the interval of a metric as text; empty without one."""
    found = quality.intervals.get(metric)
    return "" if found is None else f"{found.low:.4g} to {found.high:.4g}"


def constant_answer(result: FitResult) -> str:
    """Returns the constant answers that the scores are compared with; empty without any."""
    return " / ".join(dict.fromkeys(quality.constant for quality in result.quality.values() if quality.constant))


def score_table(result: FitResult, task: Task) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of a table of `scores`; empty columns are left out."""
    rows = scores(result, task)
    header = ("score", "value", "95 % interval", constant_answer(result))
    kept = [place for place in range(len(header)) if any(row[place] for row in rows)]
    return [header[place] for place in kept], [[row[place] for place in kept] for row in rows]


def measurements(result: FitResult) -> dict[str, str]:
    """Returns the loss, time, speed and memory of a training as text, by name."""
    seconds, speed = format_duration(result.train_seconds), f"{result.items_per_second:,.4g} items per second"
    loss = {} if result.train_loss is None else {"train_loss": format_value(result.train_loss)}
    return loss | {"training time": f"{seconds}, {speed}", "peak memory": format_bytes(result.memory.peak)}


def described(description: Description) -> str:
    """Formats a prediction for the console on two lines."""
    expected = "" if description.expected is None else f", expected {shorten(description.expected, 30)}"
    return f"{shorten(description.input)}\n    -> {shorten(description.prediction, 70 - len(expected))}{expected}"


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, in the plural unless the count is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

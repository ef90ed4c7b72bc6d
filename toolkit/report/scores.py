"""Scores with their intervals and baselines, as text for the terminal, the report and the model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.api.batch import Description, EvalData
from toolkit.api.run import Evaluation, FitResult
from toolkit.api.task import Task
from toolkit.base.console import format_bytes, format_duration, format_value, shorten
from toolkit.metrics.score import Quality, without_classes
from toolkit.report.runs import MEASURED


def base_name(name: str) -> str:
    """Returns the short name of a base model: its Hub id, or of a folder its name and its parent's."""
    if not Path(name).is_absolute() and not Path(name).is_dir():
        return name
    parts = Path(name).absolute().parts[1:]
    cached = [part.split("--", 1)[1].replace("--", "/") for part in parts if part.startswith("models--")]
    return cached[-1] if cached else "/".join(parts[-2:])


def readable(figures: Mapping[str, Any]) -> dict[str, str]:
    """Formats metrics: memory with units such as MiB, counts with commas; None is omitted."""
    shown = {}
    for name, value in figures.items():
        if value is None:
            continue
        if name in MEASURED and MEASURED[name].unit == "B":
            shown[name.removesuffix("_bytes")] = format_bytes(value)  # the value includes its unit
        elif isinstance(value, list):  # by process
            shown[name.removesuffix("_bytes")] = ", ".join(map(format_bytes, value))
        elif isinstance(value, int):
            shown[name] = f"{value:,}"
        else:
            shown[name] = format_value(value)
    return shown


def measurements(result: FitResult) -> dict[str, str]:
    """Returns the scores of an ensemble, and the loss, time, speed and memory of a training as text, by name."""
    seconds, speed = format_duration(result.train_seconds), f"{result.items_per_second:,.4g} items per second"
    loss = {} if result.train_loss is None else {"train_loss": format_value(result.train_loss)}
    both = {name: each for name, each in result.further.items() if name.startswith("ensemble_") and "/" not in name}
    return (
        readable(both)
        | loss
        | {"training time": f"{seconds}, {speed}", "peak memory": format_bytes(result.memory.peak)}
    )


WIDTH = 64
"""Letters of aligned words in a line of the terminal."""


def described(description: Description) -> str:
    """Formats a prediction for the console on two lines; on three if words are aligned and some of them are wrong.

    Missing words are shown as asterisks, as NIST's sclite does.
    """
    if any(kind != "equal" for kind, *_ in description.aligned):
        both = [(word or "*" * len(other), other or "*" * len(word)) for _, word, other in description.aligned]
        padded = [(one.ljust(len(other)), other.ljust(len(one))) for one, other in both]
        lines = (" ".join(words).rstrip() for words in zip(*padded, strict=True))
        predicted, expected = (each if len(each) <= WIDTH else each[: WIDTH - 1] + "…" for each in lines)
        return f"{shorten(description.input)}\n    predicted {predicted}\n    expected  {expected}"
    expected = "" if description.expected is None else f", expected {shorten(description.expected, 30)}"
    return f"{shorten(description.input)}\n    -> {shorten(description.prediction, 70 - len(expected))}{expected}"


START = "start_"
"""Prefix of the figures of `eval.eval_on_start`."""
MOST_LETTERS = 30
"""Maximum length of a constant answer in the terminal."""


class ShownScore(NamedTuple):
    """A score as text; `interval`, `baseline` and `start` (before training) are empty where there is none."""

    name: str
    value: str
    interval: str
    baseline: str
    start: str = ""


@dataclass(frozen=True)
class Scores:
    """The scores of one or more evaluation sets."""

    task: Task  # the task, for the properties of its scores
    metrics: Mapping[str, Mapping[str, float]]  # metrics without prefix, by set
    quality: Mapping[str, Quality]  # how far they can be trusted, by set; may be incomplete
    # scores of the validation rows before training, without prefix; may be empty
    start: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(result: FitResult, task: Task) -> Scores:
        """Returns the scores of a finished training."""
        metrics = {name: each.metrics for name, each in result.evaluations.items()}
        start = {name.removeprefix(START): value for name, value in result.further.items() if name.startswith(START)}
        return Scores(task, metrics, result.quality, start)

    @property
    def rows(self) -> list[ShownScore]:
        """All scores except per class; the first of each set is the one to trust."""
        rows = []
        for name, metrics in self.metrics.items():
            quality = self.quality.get(name, Quality())
            first = quality.trusted or self.task.best_metric
            values = readable(without_classes(metrics, self.task.scores))
            for metric in sorted(values, key=lambda metric: (metric != first, metric == "loss")):
                ends = quality.intervals.get(metric)
                interval = "" if ends is None else f"{ends.low:.4g} to {ends.high:.4g}"
                baseline = format_value(quality.baseline[metric]) if metric in quality.baseline else ""
                before = self.start.get(metric) if name == "validation" else None
                start = "" if before is None else format_value(before)
                rows.append(ShownScore(prefix_of(name) + metric, values[metric], interval, baseline, start))
        return rows

    @property
    def constant(self) -> str:
        """The constant answers that the scores are compared with; empty without any."""
        return " / ".join(dict.fromkeys(quality.constant for quality in self.quality.values() if quality.constant))

    @property
    def hints(self) -> list[str]:
        """Advice about reading the scores, as sentences."""
        return [hint for quality in self.quality.values() for hint in quality.hints]

    @property
    def figures(self) -> dict[str, float]:
        """Intervals and baselines by name, for files."""
        return {
            name: value
            for key, quality in self.quality.items()
            for name, value in quality.figures(prefix_of(key)).items()
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Returns the header and the rows of a table; without empty columns."""
        rows, header = self.rows, ("score", "value", "95 % interval", self.constant, "before training")
        kept = [place for place in range(len(header)) if any(row[place] for row in rows)]
        return [header[place] for place in kept], [[row[place] for place in kept] for row in rows]

    def lines(self) -> dict[str, str]:
        """Returns values with intervals by name, for the terminal; the main ones have their baselines, too."""
        lines: dict[str, str] = {}
        best = {prefix_of(name) + self.task.best_metric for name in self.metrics}
        for name, value, interval, baseline, start in self.rows:
            constant = (
                f"{shorten(self.constant, MOST_LETTERS)}: {baseline}"
                if baseline and (not lines or name in best)
                else ""
            )
            before = f"before training: {start}" if start and name in best else ""
            notes = "; ".join(filter(None, [interval, constant, before]))
            lines[name] = f"{value} ({notes})" if notes else value
        return lines


def prefix_of(name: str) -> str:
    """Returns the prefix of the metrics of an evaluation set."""
    return "eval_" if name == "validation" else f"{name}_"


def quality_of(task: Task, evaluation: Evaluation, data: EvalData) -> Quality:
    """Returns how far the scores of an evaluation can be trusted; call it on the main process."""
    found = task.quality(evaluation.records, evaluation.predictions, data)
    if data.prompts is None:
        return found
    return replace(found, intervals={**found.intervals, **task.generated_quality(evaluation.generated).intervals})

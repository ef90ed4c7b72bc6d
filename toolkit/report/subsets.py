"""Scores any examples of an evaluation set: samples for the bootstrap, and slices by the value of a column."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import EvalData, Predictions, Record
from toolkit.api.run import best_metric
from toolkit.api.task import Task
from toolkit.base.console import format_value
from toolkit.config.sections import Config
from toolkit.data.table import FILE, SLICES
from toolkit.document.blocks import Block, Table, Text
from toolkit.metrics.intervals import FEWEST_EXAMPLES, Gain, Interval, holm, percentiles, resamples
from toolkit.metrics.score import Score

if TYPE_CHECKING:
    from datasets import Dataset


MIN_DRAWS, INTERVAL_DRAWS = 50, 200
TIME_LIMIT_SECONDS = 60.0
"""After this time no further sets are drawn, if there are `MIN_DRAWS`; corpus metrics of large sets are slow."""


class _Drawn:
    """Drawn rows of a dataset (`order`), with its column access; `fetched` caches the columns that were read."""

    def __init__(
        self, features: Dataset, order: np.ndarray, examples: list[int] | None, fetched: dict[str, list[Any]]
    ) -> None:
        self.features, self.order, self.examples, self.fetched = features, order, examples, fetched

    def __getitem__(self, name: str) -> list[Any]:
        if name == "example" and self.examples is not None:
            return self.examples
        if name not in self.fetched:
            self.fetched[name] = self.features[name][:]
        column = self.fetched[name]
        return [column[index] for index in self.order]

    def __len__(self) -> int:
        return len(self.order)


class Subsets:
    """Scores examples of an evaluation set, given by their places; blocks of text if the task regroups rows."""

    def __init__(self, task: Task, predictions: Predictions, data: EvalData) -> None:
        self.task, self.data, self._predictions = task, data, predictions
        self.regroups = task.has("regroup")
        self.records: list[Record] = [] if self.regroups else list(task.decode(predictions, data))
        self._fetched: dict[str, list[Any]] = {}
        units = np.arange(len(data.features)) if self.regroups else np.asarray(data.features["example"][:])
        self.size = len(units) if self.regroups else len(data.rows)
        self._places = np.argsort(units, kind="stable")
        self._starts = np.searchsorted(units[self._places], np.arange(len(data.rows) + 1))

    def metrics(self, drawn: np.ndarray) -> dict[str, float]:
        """Returns the task's metrics of the examples, each as often as it was drawn."""
        with warnings.catch_warnings(action="ignore"):  # there may be no row of some class
            return self.task.metrics(*self._chosen(drawn))

    def interval(self, drawn: np.ndarray, name: str) -> Interval | None:
        """Returns the task's own interval of a metric, or the bootstrap's; None for few rows."""
        if len(drawn) < FEWEST_EXAMPLES:
            return None
        with warnings.catch_warnings(action="ignore"):
            own = self.task.quality(*self._chosen(drawn)).intervals.get(name)
        sets = draws(len(drawn), INTERVAL_DRAWS)
        return own or percentiles([self.metrics(drawn[chosen])[name] for chosen in sets], MIN_DRAWS)

    def _chosen(self, drawn: np.ndarray) -> tuple[Iterable[Record], Predictions, EvalData]:
        """Returns the records, predictions and rows of drawn examples, with all feature rows of each."""
        data = self.data
        if self.regroups:
            order, rows, examples = drawn, data.rows, None
        else:
            parts = [self._places[self._starts[example] : self._starts[example + 1]] for example in drawn]
            order, rows = np.concatenate(parts), data.rows.select(drawn)
            examples = np.repeat(np.arange(len(drawn)), [len(part) for part in parts]).tolist()
        part = EvalData(rows, _Drawn(data.features, order, examples, self._fetched), data.processor)
        arrays = {name: array[order] for name, array in self._predictions.items()}
        if self.regroups:
            return self.task.decode(arrays, part), arrays, part
        return [self.records[example] for example in drawn], arrays, part


def draws(size: int, count: int) -> Iterator[np.ndarray]:
    """Yields `count` sets drawn with replacement from `size` examples; fewer after `TIME_LIMIT_SECONDS`."""
    end = time.monotonic() + TIME_LIMIT_SECONDS
    for number, drawn in enumerate(islice(resamples(size), count)):
        if number >= MIN_DRAWS and time.monotonic() > end:
            return
        yield drawn


def resampled(task: Task, predictions: Predictions, data: EvalData, count: int) -> list[dict[str, float]]:
    """Returns the task's metrics, by name without prefix, of sets drawn with replacement (see `draws`)."""
    subsets = Subsets(task, predictions, data)
    return [subsets.metrics(drawn) for drawn in draws(subsets.size, count)]


def main_score(cfg: Config, task: Task) -> Score:
    """Returns the score of predictions that selects the best model; the task's own instead of a loss or own metric."""
    name = best_metric(cfg, task).name.removeprefix("eval_")
    scores = {score.name: score for score in task.scores}
    return scores.get(name) or scores[task.best_metric]


def before_and_after(task: Task, before: Sequence[Record], after: Iterable[tuple[Record, Record]]) -> list[Block]:
    """Returns the shares of an earlier run's validation rows that were right and are right now, by label.

    Args:
        task: says which answers are right.
        before: the lines of the earlier run's predictions.
        after: what names rows there, with their records now.
    """
    former, right = (
        {(line.get("file"), line["row"]): line for line in before},
        defaultdict[str, list[tuple[bool, bool]]](list),
    )
    for row, record in after:
        line, label = former.get((row.get("file"), row["row"]), {}), record[task.reference]
        if line.get(task.reference) == label:
            both = (task.error(line) is None, task.error(record) is None)
            for name in ("", *dict.fromkeys([label] if isinstance(label, str) else label)):
                right[name].append(both)
    compared = len(right.pop("", []))
    counts = {name: (sum(was for was, _ in own), sum(now for _, now in own)) for name, own in right.items()}
    gains = {
        name: Gain.of_counts(sum(now > was for was, now in own), sum(was > now for was, now in own), len(own))
        for name, own in right.items() if len(own) >= FEWEST_EXAMPLES
    }  # fmt: skip
    ends = dict(zip(gains, holm([*gains.values()], 0.0), strict=True))
    rows = [
        [name, len(own), *(count / len(own) for count in counts[name]), *ends.get(name, (None, None))]
        for name, own in sorted(right.items())
    ]
    lost = ", ".join(sorted(name for name, span in ends.items() if span.high < 0))
    told = [f"Forgotten in part: {lost}." if lost else "No label is proven to have lost right answers."]
    told += [f"{len(former) - compared} of its {len(former)} rows cannot be read now, or have another label."] * (
        compared < len(former)
    )
    header = ["label", "rows", "right before", "right now", "change, 95 % from", "to"]
    return [*map(Text, told), Table(header, rows, sortable=True)] if rows else []


MOST_VALUES, WORST = 100, 3
"""Values of a column that are slices of their own; rarer ones are one slice. Slices that are named as the worst."""


def slices(names: Sequence[str], values: Sequence[Sequence[str | None]]) -> list[tuple[str, np.ndarray]]:
    """Returns the places of the rows with each value, by `column=value`, most frequent first; rare values together.

    The `names` are those of the columns in each row of `values`.
    """
    found = []
    for name, column in zip(names, zip(*values, strict=True), strict=True):
        places = defaultdict[str, list[int]](list)
        for row, value in enumerate(column):
            places[value or "(empty)"].append(row)
        ordered = sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))
        own = [item for item in ordered[:MOST_VALUES] if len(item[1]) >= FEWEST_EXAMPLES]
        rare = ordered[len(own) :]
        if len(rare) > 1:
            rare = [(f"({len(rare)} rarer values)", sorted(row for _, rows in rare for row in rows))]
        found += [(f"{name}={value}", np.array(rows)) for value, rows in (*own, *rare)]
    return found


def quarters(name: str, numbers: Sequence[float]) -> list[tuple[str, np.ndarray]]:
    """Returns the places of the rows in each quarter of their numbers, by its ends; equal numbers are in one part."""
    values = np.asarray(numbers, dtype=float)
    parts = np.searchsorted(np.unique(np.quantile(values, (0.25, 0.5, 0.75))), values)
    found = []
    for part in np.unique(parts):
        places = np.flatnonzero(parts == part)
        low, high = (format_value(float(end)) for end in (values[places].min(), values[places].max()))
        found.append((f"{name}={low}" if low == high else f"{name}={low} to {high}", places))
    return found


def slice_blocks(
    cfg: Config, task: Task, predictions: Predictions, data: EvalData, columns: Sequence[str]
) -> list[Block]:
    """Returns the main score by slice, and by the file where an example begins, with intervals; the worst as text.

    A task's own `slices` are added.
    """
    names, values, files = [*columns], data.rows[SLICES][:], data.rows[FILE][:]
    if len({*files}) > 1 and "file" not in names:
        names.append("file")
        examples = data.features["example"][:] if task.has("regroup") else range(len(files))
        values = [[*values[example], files[example]] for example in examples]
    own = {} if task.has("regroup") else task.slices(data.rows)
    if not (names or own):
        return []
    parts = slices(names, values) + [part for name, numbers in own.items() for part in quarters(name, numbers)]
    subsets, score, rows = Subsets(task, predictions, data), main_score(cfg, task), list[list[Any]]()
    for name, places in parts:
        value, ends = subsets.metrics(places)[score.name], subsets.interval(places, score.name)
        span = "" if ends is None else f"{ends.low:.4g} to {ends.high:.4g}"
        rows.append([name, len(places), value, span])
    ranked = sorted((row for row in rows if row[-1]), key=lambda row: row[2], reverse=not score.greater_is_better)
    worst = "; ".join(f"{name}: {format_value(value)} ({span})" for name, _, value, span in ranked[:WORST])
    table = Table(["rows of", "rows", score.name, "95 % interval"], rows, sortable=True)
    return [Text(f"The worst: {worst}." if worst else f"No value has {FEWEST_EXAMPLES} rows."), table]

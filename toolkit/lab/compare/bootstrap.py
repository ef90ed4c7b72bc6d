"""How sure a metric is: the same metric of rows drawn again and again from those that were scored.

Efron 1979, Bootstrap methods: another look at the jackknife (The Annals of Statistics 7).
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.supports import SupportsPacking
from toolkit.api.task import EvalData, Predictions, Task

if TYPE_CHECKING:
    from datasets import Dataset

SEED = 20
"""Draws are the same for every variant, so that what is hard about some rows is hard for all of them."""
LEAST = 50
PATIENCE_SECONDS = 60.0
"""After this long (corpus metrics of large sets), the draws done so far must do, if they are at least `LEAST`."""


class _Drawn:
    """Drawn feature rows, read as a data set's columns are; each column is fetched from the whole set once.

    Args:
        features: the whole set.
        order: places of the drawn rows in it.
        examples: what stands for the column `example`, or None for the set's own.
        fetched: columns so far.
    """

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
        return [column[place] for place in self.order]

    def __len__(self) -> int:
        return len(self.order)


def resampled(task: Task, predictions: Predictions, data: EvalData, metric: str, count: int) -> list[float]:
    """Returns a metric's values for sets drawn with replacement from the examples of an evaluation set.

    Args:
        task: computes the metric.
        predictions: of all feature rows.
        data: the set; of a task that regroups its rows, blocks are drawn, else examples with all their feature rows.
        metric: its name, without prefix.
        count: how many sets are drawn.
    """
    regroups = isinstance(task, SupportsPacking)
    records = [] if regroups else list(task.decode(predictions, data))
    fetched: dict[str, list[Any]] = {}
    units = np.arange(len(data.features)) if regroups else np.asarray(data.features["example"][:])
    places = np.argsort(units, kind="stable")
    starts = np.searchsorted(units[places], np.arange(len(data.rows) + 1))
    random = np.random.default_rng(SEED)
    values: list[float] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(values) < count and not (len(values) >= LEAST and time.monotonic() > end):
        if regroups:
            order, rows, examples = random.integers(len(units), size=len(units)), data.rows, None
        else:
            drawn = random.integers(len(data.rows), size=len(data.rows))
            parts = [places[starts[example] : starts[example + 1]] for example in drawn]
            order, rows = np.concatenate(parts), data.rows.select(drawn)
            examples = np.repeat(np.arange(len(drawn)), [len(part) for part in parts]).tolist()
        part = EvalData(rows, _Drawn(data.features, order, examples, fetched), data.processor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a draw may miss a class altogether
            arrays = {name: array[order] for name, array in predictions.items()}
            chosen = task.decode(arrays, part) if regroups else [records[example] for example in drawn]
            values.append(task.metrics(chosen, arrays, part)[metric])
    return values

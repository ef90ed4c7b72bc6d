"""Bootstraps every metric of a task: computes it again for sets of rows drawn with replacement from the evaluated rows.

This takes a task's own `metrics`, whatever they are; `toolkit.metrics.intervals` is faster, and for those that are
functions of sums.
"""

from __future__ import annotations

import time
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import EvalData, Predictions
from toolkit.api.task import SupportsPacking, Task
from toolkit.metrics.intervals import resamples

if TYPE_CHECKING:
    from datasets import Dataset

MIN_DRAWS = 50
TIME_LIMIT_SECONDS = 60.0
"""After this time no further sets are drawn, if there are `MIN_DRAWS`; corpus metrics of large sets are slow."""


class _Drawn:
    """Drawn feature rows with the column access of a dataset; each column of the dataset is read only once.

    Args:
        features: the dataset.
        order: indices of the drawn rows in it.
        examples: replacement for the column `example`, or None to keep it.
        fetched: cache of the columns that were read.
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
        return [column[index] for index in self.order]

    def __len__(self) -> int:
        return len(self.order)


def resampled(task: Task, predictions: Predictions, data: EvalData, count: int) -> list[dict[str, float]]:
    """Returns the task's metrics, by name without prefix, of sets drawn with replacement from an evaluation set.

    Blocks are drawn if the task regroups rows, otherwise examples with all their feature rows.

    Args:
        task: computes the metrics.
        predictions: predictions for all feature rows.
        data: the evaluation set.
        count: number of sets; fewer are drawn after `TIME_LIMIT_SECONDS`.
    """
    regroups = isinstance(task, SupportsPacking)
    records = [] if regroups else list(task.decode(predictions, data))
    fetched: dict[str, list[Any]] = {}
    units = np.arange(len(data.features)) if regroups else np.asarray(data.features["example"][:])
    places = np.argsort(units, kind="stable")
    starts = np.searchsorted(units[places], np.arange(len(data.rows) + 1))
    values: list[dict[str, float]] = []
    end = time.monotonic() + TIME_LIMIT_SECONDS
    for drawn in islice(resamples(len(units if regroups else data.rows)), count):
        if len(values) >= MIN_DRAWS and time.monotonic() > end:
            break
        if regroups:
            order, rows, examples = drawn, data.rows, None
        else:
            parts = [places[starts[example] : starts[example + 1]] for example in drawn]
            order, rows = np.concatenate(parts), data.rows.select(drawn)
            examples = np.repeat(np.arange(len(drawn)), [len(part) for part in parts]).tolist()
        part = EvalData(rows, _Drawn(data.features, order, examples, fetched), data.processor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a draw may contain no row of some class
            arrays = {name: array[order] for name, array in predictions.items()}
            chosen = task.decode(arrays, part) if regroups else [records[example] for example in drawn]
            values.append(task.metrics(chosen, arrays, part))
    return values

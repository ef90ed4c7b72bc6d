"""Chooses the predictions that a report shows: typical ones and the worst."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from toolkit.api.batch import Record
from toolkit.api.task import Task
from toolkit.base.console import shorten
from toolkit.document.blocks import Marked

SHOWN, WORDS = 10, 40
"""Numbers of errors, and of aligned words of each, in a report."""
LEGEND = "In predictions, bold words are wrong, those in italics were added, and struck ones are missing."


def marked(aligned: Sequence[tuple[str, str, str]]) -> list[Marked]:
    """Returns `Description.aligned` as the cells of the prediction and of the right answer, with marks (`LEGEND`)."""
    marks, more = {"substitution": "mark", "insertion": "ins", "deletion": "del"}, [("…", "")] * (len(aligned) > WORDS)
    predicted = [(shorten(one or other), marks.get(kind, "")) for kind, one, other in aligned[:WORDS]]
    expected = [(shorten(other), "mark" if kind in marks else "") for kind, _, other in aligned[:WORDS] if other]
    return [Marked(predicted + more), Marked(expected + more)]


@dataclass(frozen=True)
class Wrong:
    """A wrong prediction, with its error (`toolkit.api.task.Task.error`) and its line in the file, from 1."""

    error: tuple[float, ...]
    line: int
    record: Record


class Worst:
    """Keeps the records with the largest errors."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._kept: list[Wrong] = []

    @property
    def error_name(self) -> str:
        """Name of the measure that is the first number of an error."""
        return self._task.error_name

    def see(self, line: int, record: Record) -> None:
        """Ranks a record, given its line in the file of predictions."""
        if (error := self._task.error(record)) is not None:
            self._kept.append(Wrong(error, line, record))
            if len(self._kept) > 20 * SHOWN:  # keeps memory small for large sets
                self._kept = self.found()

    def found(self) -> list[Wrong]:
        """Returns the largest errors in descending order; ties are in row order."""
        return heapq.nsmallest(SHOWN, self._kept, key=lambda wrong: tuple(-number for number in wrong.error))


FEWEST, MOST = 6, 12
"""Number of examples in a report: one of each class between these limits."""

Example = tuple[int, Record]
"""Line in the file of predictions, from 1, and the record on that line."""


class Examples:
    """Keeps predictions of every class, right and wrong ones; the first of each kind."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._kept: dict[tuple[Any, bool], list[Example]] = defaultdict(list)

    def see(self, line: int, record: Record) -> None:
        """Considers a record, given its line in the file of predictions."""
        expected = self._task.describe(record).expected if self._task.class_column() is not None else None
        wrong = self._task.error(record) is not None
        kept = self._kept[expected, wrong]
        if len(kept) < FEWEST:
            kept.append((line, record))

    def chosen(self, count: int | None = None) -> list[Example]:
        """Returns `count` examples of many kinds by line; None for one of each class within `FEWEST` and `MOST`."""
        classes = list(dict.fromkeys(expected for expected, _ in self._kept))
        count = min(MOST, max(FEWEST, len(classes))) if count is None else count
        # A right prediction of the first class, a wrong one of the second, and so on; then the other kind of each.
        wanted = [(expected, place % 2 == 1) for place, expected in enumerate(classes)]
        one = [kind if kind in self._kept else (kind[0], not kind[1]) for kind in wanted]
        other = [kind for kind in self._kept if kind not in one]
        rounds = zip_longest(*(self._kept[kind] for kind in [*one, *other]))
        found = [example for example in chain.from_iterable(rounds) if example is not None]
        return sorted(found[:count], key=lambda example: example[0])


@dataclass
class Shown:
    """Predictions on the first evaluation set, and generated texts, for the summary and the report."""

    examples: Examples | None = None
    worst: Worst | None = None  # None if the task cannot rank errors
    samples: list[str] = field(default_factory=list)

    def see(self, line: int, record: Record) -> None:
        """Considers a record, given its line in the file of predictions."""
        for keeper in (self.examples, self.worst):
            if keeper is not None:
                keeper.see(line, record)

"""Finds the largest errors of an evaluation set."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from toolkit.api.batch import Record
from toolkit.api.task import SupportsErrorRanking

SHOWN = 10


@dataclass(frozen=True)
class Wrong:
    """A wrong prediction.

    Args:
        error: size of the error, see `toolkit.api.task.SupportsErrorRanking.error`.
        line: line in the file of predictions, from 1.
        record: the record on that line.
    """

    error: tuple[float, ...]
    line: int
    record: Record


class Worst:
    """Keeps the records with the largest errors.

    Args:
        task: computes the error of a record.
    """

    def __init__(self, task: SupportsErrorRanking) -> None:
        self._task = task
        self._kept: list[Wrong] = []

    @property
    def error_name(self) -> str:
        """Name of what the first number of an error measures."""
        return self._task.error_name

    def see(self, line: int, record: Record) -> None:
        """Ranks a record, given its line in the file of predictions."""
        error = self._task.error(record)
        if error is not None:
            self._kept.append(Wrong(error, line, record))
            if len(self._kept) > 20 * SHOWN:  # keeps memory small for large sets
                self._kept = self.found()

    def found(self) -> list[Wrong]:
        """Returns the largest errors in descending order; ties are in row order."""
        return heapq.nsmallest(SHOWN, self._kept, key=lambda wrong: tuple(-number for number in wrong.error))

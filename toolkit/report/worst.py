"""The largest errors of an evaluation set."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from toolkit.api.supports import SupportsErrorRanking
from toolkit.api.task import Record

SHOWN = 10


@dataclass(frozen=True)
class Wrong:
    """A prediction that is wrong.

    Args:
        error: how wrong, as `toolkit.api.supports.SupportsErrorRanking.error` says it.
        line: of the file of predictions, from 1.
        record: what stands there.
    """

    error: tuple[float, ...]
    line: int
    record: Record


class Worst:
    """Sees records one by one and keeps the worst.

    Args:
        task: says how wrong each is.
    """

    def __init__(self, task: SupportsErrorRanking) -> None:
        self._task = task
        self._kept: list[Wrong] = []

    @property
    def error_name(self) -> str:
        """What the first number of an error measures."""
        return self._task.error_name

    def see(self, line: int, record: Record) -> None:
        """Ranks the record on a line of the file of predictions."""
        error = self._task.error(record)
        if error is not None:
            self._kept.append(Wrong(error, line, record))
            if len(self._kept) > 20 * SHOWN:  # sets may be large
                self._kept = self.found()

    def found(self) -> list[Wrong]:
        """Returns the worst ones, worst first; of equal ones those that came first."""
        return heapq.nsmallest(SHOWN, self._kept, key=lambda wrong: tuple(-number for number in wrong.error))

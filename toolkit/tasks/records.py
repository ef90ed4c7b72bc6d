"""Records of predictions that are not all kept in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolkit.api.task import Record


class LazyRecords:
    """Records that are made each time they are iterated over, as `Task.decode` may return them.

    Args:
        make: starts over, and gives one record after another.
    """

    def __init__(self, make: Callable[[], Iterator[Record]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Record]:
        return self._make()

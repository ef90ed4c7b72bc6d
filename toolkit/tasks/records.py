"""Records of predictions that are created on demand instead of being kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolkit.api.batch import Record


class LazyRecords:
    """Records that are created again by each iteration; `Task.decode` may return them.

    Args:
        make: returns a new iterator over all records.
    """

    def __init__(self, make: Callable[[], Iterator[Record]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Record]:
        return self._make()

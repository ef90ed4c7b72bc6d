"""The optional protocol of tasks that train on mixtures of rows, as in `toolkit.api.supports`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from toolkit.api.task import Batch

if TYPE_CHECKING:
    from toolkit.api.random import RowRandom


@runtime_checkable
class SupportsMixing(Protocol):
    """A task that can train on mixtures of two rows."""

    @property
    def mixes(self) -> bool:
        """Whether it does, with its options."""

    def mix(self, batch: Batch, others: Batch, row_ids: Sequence[int], random: RowRandom) -> Batch:
        """Returns the mixtures of rows, both collated, with what the loss and the number of items need."""

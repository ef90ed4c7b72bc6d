"""The order of training rows, a function of seed, epoch, number of rows, batch size, accumulation and data ranks.

An epoch's permutation is split into *windows*, the rows of one optimizer step. A window depends only on its size, so
8x1, 4x2 (batch x accumulation) and two processes of 2x2 train on the same rows in every step. Rows are never
repeated to give ranks equal numbers: a rank without rows gets an empty micro-batch (see `toolkit.data.batches`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

import numpy as np
from torch.utils.data import Sampler

from toolkit.api.random import RowRandom

GROUPED_WINDOWS = 50
"""Windows that `group_by_length` sorts together: the mega-batch of 50 batches of transformers' LengthGroupedSampler."""


@dataclass(frozen=True, eq=False)
class Order:
    """The rows of each rank for any epoch and window, without iteration.

    Args:
        num_rows: training rows.
        batch_size: rows per process and micro-batch.
        accumulation: micro-batches per window.
        data_size: number of data ranks (see `toolkit.api.mesh`).
        seed: seed of the shuffle.
        strategy: `random`, `sequential`, `group_by_length` or `balanced`.
        lengths: `[num_rows]` length of each row; required for `group_by_length`.
        classes: `[num_rows]` class id of each row; required for `balanced`.
    """

    num_rows: int
    batch_size: int
    accumulation: int
    data_size: int
    seed: int
    strategy: str = "random"
    lengths: np.ndarray | None = field(default=None, repr=False)
    classes: np.ndarray | None = field(default=None, repr=False)

    @property
    def window_size(self) -> int:
        """Rows of a full window, over all ranks."""
        return self.batch_size * self.accumulation * self.data_size

    @property
    def windows_per_epoch(self) -> int:
        """Optimizer steps of one epoch; the last window may be short."""
        return ceil(self.num_rows / self.window_size)

    def window(self, epoch: int, index: int) -> np.ndarray:
        """Returns the row numbers of one window, over all ranks: `[window_size]`, fewer in the last window."""
        return _permutation(self, epoch)[index * self.window_size : (index + 1) * self.window_size]

    def micro_batches(self, epoch: int, index: int, rank: int) -> list[list[int]]:
        """Returns the `accumulation` micro-batches of a data rank in a window, as row numbers.

        In a short window, micro-batches may be empty.
        """
        rows = self.window(epoch, index)
        starts = [(step * self.data_size + rank) * self.batch_size for step in range(self.accumulation)]
        return [rows[start : start + self.batch_size].tolist() for start in starts]


@lru_cache(maxsize=2)
def _permutation(order: Order, epoch: int) -> np.ndarray:
    if order.strategy == "sequential":
        return np.arange(order.num_rows)
    generator = np.random.default_rng([order.seed, epoch])
    if order.strategy == "balanced":
        return _balanced(order, generator)
    rows = generator.permutation(order.num_rows)
    if order.strategy == "random":
        return rows
    if order.lengths is None:
        raise AssertionError("group_by_length needs the rows' lengths")
    size = order.window_size
    group = size * GROUPED_WINDOWS
    groups = (rows[start : start + group] for start in range(0, order.num_rows, group))
    rows = np.concatenate([part[np.argsort(-order.lengths[part], kind="stable")] for part in groups])
    # Only full windows are shuffled, so that window k still starts at row k * size.
    full = order.num_rows // size
    shuffled = rows[: full * size].reshape(full, size)[generator.permutation(full)].reshape(-1)
    return np.concatenate([shuffled, rows[full * size :]])


def _balanced(order: Order, generator: np.random.Generator) -> np.ndarray:
    """Returns `num_rows` rows with the same number of each class; no row repeats before all of its class are used."""
    if order.classes is None:
        raise AssertionError("balanced needs the rows' classes")
    members = [np.flatnonzero(order.classes == number) for number in np.unique(order.classes)]
    # The classes that get one of the remaining rows are drawn again in each epoch.
    quotas = np.full(len(members), order.num_rows // len(members))
    quotas[generator.permutation(len(members))[: order.num_rows % len(members)]] += 1
    rows = []
    for rows_of_class, quota in zip(members, quotas, strict=True):
        rounds = [generator.permutation(rows_of_class) for _ in range(ceil(quota / len(rows_of_class)))]
        rows.append(np.concatenate([rows_of_class[:0], *rounds])[:quota])
    return generator.permutation(np.concatenate(rows))


class WindowSampler(Sampler[list[int]]):
    """Batch sampler over one rank's micro-batches, which can start at any epoch and window.

    Its length is always that of a complete epoch, also after `seek`.
    """

    def __init__(self, order: Order, rank: int) -> None:
        self.order, self.rank = order, rank
        self.random = RowRandom(order.seed, epoch=0)
        self._window = 0

    def seek(self, epoch: int, window: int = 0) -> None:
        """Makes the next iteration start at a window of an epoch."""
        self.random.epoch, self._window = epoch, window

    def __iter__(self) -> Iterator[list[int]]:
        for window in range(self._window, self.order.windows_per_epoch):
            yield from self.order.micro_batches(self.random.epoch, window, self.rank)

    def __len__(self) -> int:
        return self.order.windows_per_epoch * self.order.accumulation


def evaluation_batches(
    lengths: np.ndarray, batch_size: int, data_rank: int, data_size: int, equally_many: bool = False
) -> list[list[int]]:
    """Distributes evaluation rows over data ranks, each row exactly once, with rows of similar length together.

    Predictions are reordered by row id later, so any order is possible; this one has the least padding.

    Args:
        lengths: `[rows]` length of each row.
        batch_size: rows per batch.
        data_rank: this process's data rank.
        data_size: number of data ranks.
        equally_many: whether every data rank gets the same number of batches; some may be empty.

    Returns:
        This rank's batches of row numbers.
    """
    mine = np.argsort(-lengths, kind="stable")[data_rank::data_size].tolist()
    longest = -(-len(lengths) // data_size) if equally_many else len(mine)
    return [mine[start : start + batch_size] for start in range(0, longest, batch_size)]

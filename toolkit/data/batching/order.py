"""The order of training rows, a function of seed, epoch, number of rows, batch size, accumulation and data ranks.

An epoch's permutation is split into *windows*, the rows of one optimizer step. A window depends only on its size, so
8x1, 4x2 (batch x accumulation) and two processes of 2x2 train on the same rows in every step. Rows are never
repeated to give ranks equal numbers: a rank without rows gets an empty micro-batch (see
`toolkit.data.batching.batches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from math import ceil

import numpy as np
from torch.utils.data import Sampler

from toolkit.api.random import RowRandom
from toolkit.data.batching.budget import Budget

GROUPED_WINDOWS = 50
"""Windows that `group_by_length` sorts together: the mega-batch of 50 batches of transformers' LengthGroupedSampler."""


@dataclass(frozen=True, eq=False)
class Order:
    """The rows of each rank for any epoch and window, without iteration."""

    num_rows: int  # training rows
    batch_size: int  # rows per process and micro-batch
    accumulation: int  # micro-batches per window
    data_size: int  # number of data ranks (see `toolkit.api.mesh`)
    seed: int  # seed of the shuffle
    strategy: str = "random"  # `random`, `sequential`, `group_by_length` or `balanced`
    # `[num_rows]` length of each row; required for `group_by_length`
    lengths: np.ndarray | None = field(default=None, repr=False)
    # `[num_rows]` class id of each row; required for `balanced`
    classes: np.ndarray | None = field(default=None, repr=False)
    # cuts windows into micro-batches; None cuts them into `accumulation` of `batch_size` rows
    budget: Budget | None = None
    rows: int | None = None  # rows of a full window; None makes every micro-batch of every rank full
    files: np.ndarray | None = field(default=None, repr=False)  # `[num_rows]` number of each row's file, with `mix`
    mix: Sequence[float] = ()  # the files' shares; empty draws each row once

    @property
    def window_size(self) -> int:
        """Rows of a full window, over all ranks."""
        return self.rows or self.batch_size * self.accumulation * self.data_size

    @property
    def windows_per_epoch(self) -> int:
        """Optimizer steps of one epoch; the last window may be short."""
        return ceil(self.num_rows / self.window_size)

    def window(self, epoch: int, index: int) -> np.ndarray:
        """Returns the row numbers of one window, over all ranks: `[window_size]`, fewer in the last window."""
        return _permutation(self, epoch)[index * self.window_size : (index + 1) * self.window_size]

    def micro_batches(self, epoch: int, index: int, rank: int) -> list[list[int]]:
        """Returns the micro-batches of a data rank in a window, as row numbers.

        Without a budget, there are `accumulation`. In a short window, micro-batches may be empty.
        """
        rows = self.window(epoch, index)
        if self.budget is not None:
            return self.budget.micro_batches(rows.tolist(), rank, self.data_size)
        starts = [(step * self.data_size + rank) * self.batch_size for step in range(self.accumulation)]
        return [rows[start : start + self.batch_size].tolist() for start in starts]


@lru_cache(maxsize=2)
def _permutation(order: Order, epoch: int) -> np.ndarray:
    if order.strategy == "sequential":
        return np.arange(order.num_rows)
    generator = np.random.default_rng([order.seed, epoch])
    if order.strategy == "balanced":
        return _balanced(order, generator)
    rows = generator.permutation(order.num_rows if order.files is None else _mixed(order, epoch))
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


def shares(num_rows: int, mix: Sequence[float]) -> list[int]:
    """Returns how many of an epoch's rows each file has: its share, to within a row."""
    ends = np.cumsum(np.array(mix) / max(mix))
    counts: list[int] = np.diff(np.rint(ends / ends[-1] * num_rows).astype(int), prepend=0).tolist()
    return counts


def _mixed(order: Order, epoch: int) -> np.ndarray:
    """Returns the rows of an epoch, by file: cuts of each file's endless sequence of shuffled passes."""
    rows = []
    for file, quota in enumerate(shares(order.num_rows, order.mix)):
        members = np.flatnonzero(order.files == file)
        first, start = divmod(epoch * quota, len(members))
        passes = range(first, first + ceil((start + quota) / len(members)))
        dealt = [np.random.default_rng([order.seed, number, file + 1]).permutation(members) for number in passes]
        rows.append(np.concatenate([members[:0], *dealt])[start : start + quota])
    return np.concatenate(rows)


class WindowSampler(Sampler[list[int]]):
    """Batch sampler over one rank's micro-batches, which can start at any epoch and window.

    Its length is always that of a complete epoch, also after `seek`.

    Args:
        order: the rows of each rank.
        rank: the data rank.
    """

    def __init__(self, order: Order, rank: int) -> None:
        self.order, self.rank = order, rank
        self.random = RowRandom(order.seed, epoch=0)
        self._window = 0

    def seek(self, epoch: int, window: int = 0) -> None:
        """Makes the next iteration start at a window of an epoch."""
        self.random.epoch, self._window = epoch, window

    def __iter__(self) -> Iterator[list[int]]:
        return chain.from_iterable(self.windows())

    def windows(self) -> Iterator[list[list[int]]]:
        """Returns the micro-batches of each window, from the one where the next iteration starts."""
        return self._cut(range(self._window, self.order.windows_per_epoch))

    def __len__(self) -> int:
        return sum(map(len, self._cut(range(self.order.windows_per_epoch))))

    def _cut(self, windows: range) -> Iterator[list[list[int]]]:
        return map(partial(self.order.micro_batches, self.random.epoch, rank=self.rank), windows)


def evaluation_batches(
    lengths: np.ndarray,
    batch_size: int,
    data_rank: int,
    data_size: int,
    equally_many: bool = False,
    max_tokens: int | None = None,
) -> list[list[int]]:
    """Distributes evaluation rows over data ranks, each row exactly once, with rows of similar length together.

    Predictions are reordered by row id later, so any order is possible; this one has the least padding.

    Args:
        lengths: length of each row, `[rows]`, or of the parts that are padded separately, `[rows, sides]`.
        batch_size: maximum number of rows per batch.
        data_rank: this process's data rank.
        data_size: number of data ranks.
        equally_many: whether every data rank gets the same number of batches; some may be empty.
        max_tokens: maximum number of tokens per batch, padding included; a longer row is alone. None: no maximum.

    Returns:
        This rank's batches of row numbers.
    """
    sides = lengths.reshape(len(lengths), -1)
    order = np.argsort(-sides.sum(axis=1), kind="stable")
    ranks = range(data_size) if equally_many else [data_rank]
    batches = {rank: _consecutive(order[rank::data_size], sides, batch_size, max_tokens) for rank in ranks}
    count = max(map(len, batches.values()))
    return batches[data_rank] + [[] for _ in range(count - len(batches[data_rank]))]


def _consecutive(rows: np.ndarray, lengths: np.ndarray, batch_size: int, max_tokens: int | None) -> list[list[int]]:
    if max_tokens is None:
        return [rows[start : start + batch_size].tolist() for start in range(0, len(rows), batch_size)]
    batches: list[list[int]] = []
    longest: list[int] = []
    for row, sides in zip(rows.tolist(), lengths[rows].tolist(), strict=True):
        if batches and len(batches[-1]) < batch_size:
            both = list(map(max, longest, sides))
            if (len(batches[-1]) + 1) * sum(both) <= max_tokens:
                batches[-1].append(row)
                longest = both
                continue
        batches.append([row])
        longest = sides
    return batches

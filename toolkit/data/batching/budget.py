"""Token budgets (`train.max_tokens_per_batch`), and the lengths to which batches are padded.

A window keeps its rows, and an update is a sum over its items, so the cut changes no update. It is a function of the
window alone, so every process computes the cut of all others without asking them.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from toolkit.api.mesh import Mesh
    from toolkit.config.sections import Config, TrainConfig


LONG_ROW = 4608
"""Length of a row whose attention costs as much as all other products of a layer, which is six times the hidden size
(counting multiplications, two for each position and feature); that of a model of BERT-base's size."""
MAX_PADDED = 4
"""How many times a budget the padded batch of a model without padding may be: embeddings and heads are padded."""
SAMPLES_PER_FRAME = 320
"""Audio samples that speech models merge into one position of their layers (20 ms at 16 kHz)."""


def lengths_of(features: datasets.Dataset) -> np.ndarray:
    """Returns the lengths of feature rows, `[rows, sides]`: inputs and, if they are padded separately, targets."""
    total = np.asarray(features["length"][:], dtype=np.int64)
    if "target_length" not in features.column_names:
        return total[:, None]
    targets = np.asarray(features["target_length"][:], dtype=np.int64)
    return np.stack([total - targets, targets], axis=1)


def tokens_of(lengths: Sequence[Sequence[int]], unpadded: bool) -> int:
    """Returns the tokens of a micro-batch with row lengths `[rows, sides]`, padding included unless `unpadded`."""
    if unpadded:
        return sum(map(sum, lengths))
    return len(lengths) * sum(max(side) for side in zip(*lengths, strict=True))


@dataclass(frozen=True, eq=False)
class Budget:
    """The tokens that a micro-batch may have."""

    tokens: int  # the largest number of tokens; a longer row is a micro-batch of its own
    lengths: np.ndarray = field(repr=False)  # `[rows, sides]`, as `lengths_of` returns them
    unpadded: bool = False  # whether layers and their attention compute on rows without padding
    long_row: int = LONG_ROW  # see `LONG_ROW`, in the unit of `lengths`
    # whether all data ranks need the same number of micro-batches, because they exchange parameters in the forward
    # pass; some are then empty
    equal_counts: bool = False
    multiple: int = 1  # what the number of micro-batches must be a multiple of

    def micro_batches(self, rows: Iterable[int], data_rank: int, data_size: int) -> list[list[int]]:
        """Returns a data rank's micro-batches of a window's rows, at least one; empty if there are too few rows."""
        shares = self.shares(rows, data_size)
        own = self.cut(shares[data_rank])
        count = max(len(self.cut(share)) for share in shares) if self.equal_counts else len(own)
        count = -(-max(1, count) // self.multiple) * self.multiple
        return own + [[] for _ in range(count - len(own))]

    def shares(self, rows: Iterable[int], data_size: int) -> list[list[int]]:
        """Distributes rows over data ranks by cost: each row, longest first, to the rank with the least (LPT).

        Source: Graham 1969, Bounds on multiprocessing timing anomalies; the largest share is at most 4/3 of the
        smallest possible one. Ties go by row number, then by rank.
        """
        shares: list[list[int]] = [[] for _ in range(data_size)]
        load = [(0, rank) for rank in range(data_size)]
        for length, row in self._longest_first(rows):
            cost, rank = load[0]
            shares[rank].append(row)
            # Integers, so that all machines agree: tokens + tokens^2 / long_row, times long_row.
            heapq.heapreplace(load, (cost + length * (self.long_row + length), rank))
        return shares

    def cut(self, rows: Iterable[int], tokens: int | None = None) -> list[list[int]]:
        """Packs rows into micro-batches: each row, longest first, into the first one with room (first-fit decreasing).

        `tokens` replaces the limit of the budget. No rows give no micro-batches.
        """
        limit = self.tokens if tokens is None else tokens
        bins: list[list[int]] = []
        held: list[tuple[int, ...]] = []  # of each: rows, sum of lengths, longest of each side
        for length, row in self._longest_first(rows):
            sides = self.lengths[row].tolist()
            for number, (count, total, *longest) in enumerate(held):
                longest = list(map(max, longest, sides))
                padded = (count + 1) * sum(longest)
                if padded <= limit or (self.unpadded and total + length <= limit and padded <= MAX_PADDED * limit):
                    bins[number].append(row)
                    held[number] = (count + 1, total + length, *longest)
                    break
            else:
                bins.append([row])
                held.append((1, length, *sides))
        return bins

    def _longest_first(self, rows: Iterable[int]) -> list[tuple[int, int]]:
        """Returns length and number of each row."""
        numbers = np.fromiter(rows, dtype=np.int64)
        totals = self.lengths[numbers].sum(axis=1)
        order = np.lexsort((numbers, -totals))
        return list(zip(totals[order].tolist(), numbers[order].tolist(), strict=True))


def training_budget(features: datasets.Dataset, cfg: Config, mesh: Mesh, unit: str, unpadded: bool) -> Budget | None:
    """Returns the budget of a run's training, or None; `unpadded` says whether layers and attention skip padding."""
    tokens, parallel = cfg.train.max_tokens_per_batch, cfg.parallel
    if tokens is None:
        return None
    # Its groups of micro-batches are as large as the pipeline.
    interleaved = mesh.pipeline > 1 and parallel.schedule == "interleaved_1f1b"
    return Budget(
        tokens,
        lengths_of(features),
        unpadded and unit != "samples",  # speech models' convolutions compute on padded clips
        LONG_ROW * (SAMPLES_PER_FRAME if unit == "samples" else 1),
        equal_counts=mesh.fsdp > 1 or mesh.expert > 1 or parallel.backend == "deepspeed",
        multiple=mesh.pipeline if interleaved else 1,
    )


def largest(train: TrainConfig, longest: int) -> int:
    """Returns the rows of the largest micro-batch, which has rows of `longest` tokens."""
    if train.max_tokens_per_batch is None:
        return train.micro_batch
    return min(_own_rows(train), max(1, train.max_tokens_per_batch // max(1, longest)))


def num_micro_batches(train: TrainConfig, rows: int) -> int:
    """Returns the micro-batches of `rows` rows in a data rank's part of a window."""
    if train.max_tokens_per_batch is None:
        return train.accumulation
    return -(-_own_rows(train) // rows)


def _own_rows(train: TrainConfig) -> int:
    return train.micro_batch * train.accumulation


def over_budget(key: str, tokens: int | None, features: datasets.Dataset, unit: str) -> list[str]:
    """Returns a note if rows are longer than the budget of the setting `key`, or nothing."""
    if tokens is None:
        return []
    lengths = np.asarray(features["length"][:])
    longer = int((lengths > tokens).sum())
    if not longer:
        return []
    rows = "row has" if longer == 1 else "rows have"
    return [
        f"{key}: {longer:,} of {len(lengths):,} {rows} more than {tokens:,} {unit} (up to "
        f"{int(lengths.max()):,}); each is a batch of its own, so memory is not limited by the budget"
    ]


_ATTRIBUTE = "pads_to_multiple_of"


def padding_to(tokenizer: PreTrainedTokenizerBase, train: TrainConfig) -> PreTrainedTokenizerBase:
    """Returns a copy of a tokenizer with which the text modalities pad the rows of batches to a multiple of tokens."""
    if train.pad_to_multiple_of is None or train.unpadded is True:
        return tokenizer
    padding = copy.copy(tokenizer)
    setattr(padding, _ATTRIBUTE, train.pad_to_multiple_of)
    return padding


def multiple_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Returns what a tokenizer pads to a multiple of, or None."""
    return getattr(tokenizer, _ATTRIBUTE, None)


def padded_length(longest: int, multiple: int | None) -> int:
    """Returns the length of a batch whose longest row has `longest` tokens."""
    return longest if multiple is None else math.ceil(longest / multiple) * multiple

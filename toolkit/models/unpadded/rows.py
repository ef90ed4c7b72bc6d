"""Which positions of a padded batch hold tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """The positions of the tokens of a padded batch, each row's without a gap.

    Args:
        where: positions of the tokens in the flattened batch, `[N]` int64, row by row; None if all are tokens.
        lengths: tokens of each row, at least 1.
        longest: positions of a padded row, T.
    """

    where: Tensor | None
    lengths: list[int]
    longest: int

    @staticmethod
    def of(mask: Tensor) -> Rows | None:
        """Returns the rows of a mask `[B, T]` (true at tokens), or None if a row has no token, or a gap between them.

        Distances between tokens, on which position biases and windows depend, stay the same without a gap only.
        """
        count = mask.sum(1)
        first, last = mask.int().argmax(1), mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        lengths: list[int] = torch.where(last - first + 1 == count, count, 0).tolist()
        if min(lengths, default=0) == 0:
            return None
        full = sum(lengths) == mask.numel()
        return Rows(None if full else mask.flatten().nonzero()[:, 0], lengths, mask.shape[1])

    @cached_property
    def total(self) -> int:
        """Number of tokens, N."""
        return sum(self.lengths)

    def ends_on(self, device: torch.device) -> Tensor:
        """Returns where rows end among the tokens, with 0 in front, `[B + 1]` int32; made once for all layers."""
        if device not in self._ends:
            ends = torch.tensor([0, *self.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            self._ends[device] = ends.to(device)
        return self._ends[device]

    @cached_property
    def _ends(self) -> dict[torch.device, Tensor]:
        return {}

    @cached_property
    def left(self) -> Rows:
        """The same rows with their tokens at the left, padded to the longest only."""
        longest = max(self.lengths)
        device = None if self.where is None else self.where.device
        lengths = torch.tensor(self.lengths, device=device)
        where = (torch.arange(longest, device=device) < lengths[:, None]).flatten().nonzero()[:, 0]
        return Rows(where if len(where) < longest * len(self.lengths) else None, self.lengths, longest)

    @property
    def is_padded(self) -> bool:
        """Whether the batch has padding."""
        return self.where is not None

    def holds(self, flat: Tensor) -> bool:
        """Returns whether a tensor is `[1, N, ...]`, these tokens alone."""
        return flat.shape[:2] == (1, self.total) and self.is_padded

    def fits(self, padded: Tensor) -> bool:
        """Returns whether a tensor is `[B, T, ...]`, the padded batch."""
        return padded.shape[:2] == (len(self.lengths), self.longest)

    def take(self, padded: Tensor) -> Tensor:
        """Returns the tokens `[1, N, ...]` of a batch `[B, T, ...]`, or of `[1, T, ...]`, one row for all."""
        if padded.shape[0] != len(self.lengths):
            padded = padded.expand(len(self.lengths), *padded.shape[1:])
        flat = padded.flatten(0, 1)
        return (flat if self.where is None else flat.index_select(0, self.where)).unsqueeze(0)

    def put(self, flat: Tensor) -> Tensor:
        """Returns the batch `[B, T, ...]` of tokens `[1, N, ...]`, with zeros as padding."""
        shape = len(self.lengths), self.longest, *flat.shape[2:]
        if self.where is None:
            return flat.view(shape)
        # Not the view of a flat copy: FSDP warns of modules that return views.
        row, place = self.where // shape[1], self.where % shape[1]
        return flat.new_zeros(shape).index_put((row, place), flat[0])

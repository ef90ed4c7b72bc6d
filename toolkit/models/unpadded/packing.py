"""The tokens of a batch without padding, and the mask that the model hands to its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """The positions of the tokens of a padded batch, each row's without a gap."""

    where: Tensor | None  # positions of tokens in the flattened batch, `[N]` int64, by row; None if all are, in order
    lengths: list[int]  # tokens of each row, at least 1
    longest: int  # positions of a padded row, T
    filler: int = 0  # the last of the tokens, copies of the first one that are in no row

    @staticmethod
    def of(mask: Tensor, multiple: int | None = None) -> Rows | None:
        """Returns the rows of a mask `[B, T]` (true at tokens), or None if a row has no token, or a gap between them.

        With a `multiple`, the number of tokens is one, and a batch without padding has positions of tokens, too.

        Distances between tokens, on which position biases and windows depend, stay the same without a gap only.
        """
        count = mask.sum(1)
        first, last = mask.int().argmax(1), mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        lengths: list[int] = torch.where(last - first + 1 == count, count, 0).tolist()
        if min(lengths, default=0) == 0:
            return None
        if multiple is None and sum(lengths) == mask.numel():
            return Rows(None, lengths, mask.shape[1])
        filler = -sum(lengths) % (multiple or 1)
        if filler and (1, sum(lengths) + filler) == mask.shape:  # `holds` would take the batch for its tokens
            filler += multiple or 0
        where = mask.flatten().nonzero()[:, 0]
        return Rows(torch.cat([where, where[:1].expand(filler)]), lengths, mask.shape[1], filler)

    @cached_property
    def total(self) -> int:
        """Number of tokens, N."""
        return sum(self.lengths) + self.filler

    @cached_property
    def sequences(self) -> list[int]:
        """Numbers of tokens that attend to each other, none above the longest row's."""
        longest = max(self.lengths)
        return [*self.lengths, *(min(longest, self.filler - start) for start in range(0, self.filler, longest))]

    def ends_on(self, device: torch.device) -> Tensor:
        """Returns where sequences end among the tokens, with 0 in front, int32; made once for all layers."""
        if device not in self._ends:
            ends = torch.tensor([0, *self.sequences], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            self._ends[device] = ends.to(device)
        return self._ends[device]

    @cached_property
    def _ends(self) -> dict[torch.device, Tensor]:
        return {}

    @cached_property
    def left(self) -> Rows:
        """A row for each sequence, with its tokens at the left, padded to the longest only."""
        longest = max(self.lengths)
        device = None if self.where is None else self.where.device
        lengths = torch.tensor(self.sequences, device=device)
        where = (torch.arange(longest, device=device) < lengths[:, None]).flatten().nonzero()[:, 0]
        return Rows(where if len(where) < longest * len(self.sequences) else None, self.sequences, longest)

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
        if self.where is None:
            return flat.view(len(self.lengths), self.longest, *flat.shape[2:])
        padded: Tensor = _Put.apply(flat, self)
        return padded

    @cached_property
    def sources(self) -> Tensor:
        """The token at each position of the flattened batch, N at padding."""
        assert self.where is not None
        found = torch.full((len(self.lengths) * self.longest,), self.total, device=self.where.device)
        own = self.where[: sum(self.lengths)]
        return found.index_copy_(0, own, torch.arange(len(own), device=own.device))


class _Put(torch.autograd.Function):
    """`Rows.put`: copies whole tokens in both passes, which on a CPU takes a fifth of the time of `index_put`."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        tokens = torch.cat([flat[0], flat.new_zeros(1, *flat.shape[2:])])
        # Not the view of a flat copy: FSDP warns of modules that return views.
        padded = flat.new_empty(len(rows.lengths), rows.longest, *flat.shape[2:])
        torch.index_select(tokens, 0, rows.sources, out=padded.flatten(0, 1))
        return padded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        taken = ctx.rows.take(gradient)
        taken[:, taken.shape[1] - ctx.rows.filler :] = 0
        return taken, None


def places(lengths: Sequence[int], size: int) -> tuple[list[int], int]:
    """Puts rows behind each other into as few of `size` positions as fit, the longest first.

    Returns where each begins among the positions of all, and the number of rows that are left.
    """
    begins, free = [0] * len(lengths), list[int]()
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        shared = next((i for i, left in enumerate(free) if left >= lengths[row]), len(free))
        if shared == len(free):
            free.append(size)
        begins[row] = (shared + 1) * size - free[shared]
        free[shared] -= lengths[row]
    return begins, len(free)


LONGEST_TOGETHER = 64
"""Tokens up to which one call of attention for all sequences, padded again, is faster on a CPU than one for each."""
LEAST_PADDING, LEAST_TOGETHER = 0.1, 0.15
"""Shares of padding from which a CPU is faster without it, the second where attention is computed together.

Below, taking the tokens out of a batch and putting them back costs more than computing its padding, in a step of a BERT
of 6 layers and width 384 in bf16 with rows of 12 to 256 tokens.
"""


@dataclass(frozen=True, eq=False)
class Packing:
    """What layers get in place of an attention mask."""

    keys: Rows  # the tokens that are attended to
    queries: Rows  # the tokens that attend: in cross attention the decoder's, otherwise the same
    causal: bool  # whether tokens attend to none after them; None leaves it to the attention module
    window: Tensor | None  # which positions attend to which, `[T, T]` bool, if neither all nor all before
    padded: Mapping[str, Any]  # the arguments of transformers' mask of the padded batch, for layers that run padded

    @cached_property
    def mask(self) -> Tensor | None:
        """The mask of the padded batch, `[B, 1, T, T]` bool."""
        from transformers.masking_utils import sdpa_mask

        return sdpa_mask(**self.padded)

    @cached_property
    def _taken(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def take(self, padded: Tensor) -> Tensor:
        """Returns the tokens of a tensor that all layers share, such as rotary embeddings or encoder states."""
        key = id(padded)
        if key not in self._taken:
            self._taken[key] = padded, self.keys.take(padded)  # keeps `padded`, so that its id stays its own
        return self._taken[key][1]


def packed_mask(*, multiple: int | None = None, **arguments: Any) -> Packing | Tensor | None:
    """Returns a `Packing` for a batch with padding, else transformers' mask; arguments are those of `sdpa_mask`.

    With a `multiple`, to which the number of tokens is rounded up, the batch needs no padding.
    """
    from transformers.masking_utils import sdpa_mask

    mask, causal = arguments.get("attention_mask"), arguments.get("allow_is_causal_skip", True)
    plain = causal != arguments.get("allow_is_bidirectional_skip", False) and not arguments.get("use_vmap")
    begins = all(_is_zero(arguments.get(name, 0)) for name in ("q_offset", "kv_offset"))
    if plain and begins and mask is not None and mask.shape == (arguments["batch_size"], arguments["kv_length"]):
        rows = Rows.of(mask.bool(), multiple)
        if rows is not None and rows.is_padded:
            return Packing(rows, rows, causal, _window(arguments, max(rows.lengths)), arguments)
    return sdpa_mask(**arguments)


def packed_mask_where_it_pays(**arguments: Any) -> Packing | Tensor | None:
    """Like `packed_mask`, but returns a mask for a batch with so little padding that a CPU is faster with it."""
    found = packed_mask(**arguments)
    if not isinstance(found, Packing) or arguments["attention_mask"].device.type != "cpu":
        return found
    rows = found.keys
    padding = 1 - rows.total / (len(rows.lengths) * rows.longest)
    least = LEAST_TOGETHER if rows.longest <= LONGEST_TOGETHER else LEAST_PADDING
    return found if padding >= least else found.mask


def _is_zero(offset: int | Tensor) -> bool:
    return not isinstance(offset, torch.Tensor) and offset == 0


def _window(arguments: dict[str, Any], longest: int) -> Tensor | None:
    """Returns the window of local attention, if a row is longer than it."""
    from transformers.masking_utils import sdpa_mask

    size = arguments.get("local_size")
    if size is None or longest <= size:
        return None
    alone = {"batch_size": 1, "attention_mask": None, "allow_is_causal_skip": False}
    mask = sdpa_mask(**{**arguments, **alone, "allow_is_bidirectional_skip": False})
    assert mask is not None
    return mask[0, 0]

"""Where the outputs of a forward pass are needed.

A language model's output head multiplies by the whole vocabulary, mostly at positions without a label: padding,
prompts, tokens that are not masked. A batch that names its labelled positions lets the head compute their logits only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.api.task import Batch

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Places:
    """Positions at which logits are needed.

    Args:
        shape: shape of the labels, `[B, T]`.
        positions: positions `[n]` in the flattened labels.
    """

    shape: torch.Size
    positions: Tensor


_NEEDED: ContextVar[Places | None] = ContextVar("needed", default=None)


@contextmanager
def logits_at_labels(batch: Batch) -> Iterator[None]:
    """Lets forward passes inside compute logits only at the batch's `labelled` positions, if it has them."""
    labelled = batch.get("labelled")
    token = _NEEDED.set(None if labelled is None else Places(batch["labels"].shape, labelled))
    try:
        yield
    finally:
        _NEEDED.reset(token)


def needed() -> Places | None:
    """Returns where the current forward pass needs logits; None for everywhere."""
    return _NEEDED.get()

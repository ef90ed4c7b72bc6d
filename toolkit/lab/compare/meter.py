"""Measures the time, items and padding of each step of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.api.batch import Batch

if TYPE_CHECKING:
    from torch import nn


class Meter:
    """Records measurements of each step; a `toolkit.api.run.Observer`.

    Attributes:
        seconds: seconds of each step, with data loading, without evaluation and checkpoints.
        real: number of real positions in this process's batches of each step. Positions are tokens or samples, or rows
            if inputs are not padded.
        positions: number of all positions, with padding.
        items: number of items that the loss of each step was divided by, over all processes.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.real: list[int] = []
        self.positions: list[int] = []
        self.items: list[float] = []

    def gradient(self, step: int, model: nn.Module) -> None:
        """Does nothing."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Records a step."""
        counts = [count_positions(batch) for batch in batches]
        self.seconds.append(record["seconds"])
        self.items.append(record["num_items"])
        self.real.append(sum(real for real, _ in counts))
        self.positions.append(sum(total for _, total in counts))


def count_positions(batch: Batch) -> tuple[int, int]:
    """Counts the real positions and all positions of a batch.

    Args:
        batch: a micro-batch. Its attention masks `[batch, length]` are 1 at real positions; without masks, each row is
            one position. Placeholder rows (with negative `row_ids`) are padding.
    """
    placeholder = batch["row_ids"] < 0
    masks = [mask for name, mask in batch["inputs"].items() if name.endswith("attention_mask") and mask.dim() == 2]
    if not masks:
        return int((~placeholder).sum()), len(placeholder)
    return sum(int(mask[~placeholder].sum()) for mask in masks), sum(mask.numel() for mask in masks)

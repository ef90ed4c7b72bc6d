"""Looks at a run step by step: how long each took, and how much of what it read was padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.api.task import Batch

if TYPE_CHECKING:
    from torch import nn


class Meter:
    """An observer of runs.

    Attributes:
        seconds: of each step, rows fetched included; evaluations and checkpoints not.
        real: positions (tokens, samples; rows where nothing is padded) of this process's batches, of each step.
        positions: the same with padding.
        items: what the loss of each step was divided by, over all processes.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.real: list[int] = []
        self.positions: list[int] = []
        self.items: list[float] = []

    def gradient(self, step: int, model: nn.Module) -> None:
        """Gradients are of no interest."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Counts a step."""
        counts = [count_positions(batch) for batch in batches]
        self.seconds.append(record["seconds"])
        self.items.append(record["num_items"])
        self.real.append(sum(real for real, _ in counts))
        self.positions.append(sum(every for _, every in counts))


def count_positions(batch: Batch) -> tuple[int, int]:
    """Returns how many positions of a batch are real, and how many there are.

    Args:
        batch: with masks `[B, L]` among its inputs (1 is real), or else rows that are not padded; a stand-in row (of
            which `row_ids` is negative) is padding.
    """
    stands_in = batch["row_ids"] < 0
    masks = [mask for name, mask in batch["inputs"].items() if name.endswith("attention_mask") and mask.dim() == 2]
    if not masks:
        return int((~stands_in).sum()), len(stands_in)
    return sum(int(mask[~stands_in].sum()) for mask in masks), sum(mask.numel() for mask in masks)

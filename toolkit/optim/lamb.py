"""LAMB over 8-bit moments."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.optim import AdamW8bit

MOST_NORM = 10.0
"""Upper bound of a parameter's norm in the trust ratio, as in the authors' code."""


class Lamb8bit(AdamW8bit):
    """LAMB: Adam with a layer-wise trust ratio, for large batches (You et al. 2020, arXiv 1904.00962).

    `bitsandbytes.optim.LAMB8bit` (0.50) does not implement LAMB: its block-wise kernel does Adam's update on a CPU and
    is missing on a GPU. This class uses the library's 8-bit Adam for the direction and applies the ratio itself.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        min_8bit_size: int = 4096,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, min_8bit_size=min_8bit_size)

    @torch.no_grad()
    def update_step(self, group: dict[str, Any], p: torch.Tensor, gindex: int, pindex: int) -> None:
        """Updates one parameter; called by the base class for each of them."""
        before = p.detach().clone()
        # With a rate of 1, the difference is the direction.
        super().update_step({**group, "lr": 1.0, "weight_decay": 0.0}, p, gindex, pindex)
        direction = (before - p).add_(before, alpha=group["weight_decay"])
        size, length = before.norm().clamp(max=MOST_NORM), direction.norm()
        ratio = torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size))
        p.copy_(before - group["lr"] * ratio * direction)

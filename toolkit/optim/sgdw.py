"""SGD with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD


class SGDW(SGD):
    """SGD with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101); arguments are those of SGD."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Multiplies each parameter that has a gradient by 1 - rate * decay, then does SGD's step without decay."""
        decays = [group["weight_decay"] for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = 0.0
            for parameter in group["params"]:
                if decay and parameter.grad is not None:
                    parameter.mul_(1.0 - group["lr"] * decay)
        try:
            return super().step(closure)
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay

"""Muon for matrices and AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

MATRICES = "matrices"
"""Key of a parameter group: whether Muon trains it."""


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024) on hidden matrices; AdamW on vectors, embeddings, heads and kernels.

    Args:
        params: parameter groups, each with the key `matrices`: whether its parameters are hidden matrices.
        lr: learning rate of both; Muon's update is scaled to the size of AdamW's with `match_rms_adamw`.
        betas: decay rates of AdamW's moments.
        eps: AdamW's epsilon.
        weight_decay: decoupled weight decay of both.
        momentum: Muon's momentum.
        nesterov: whether Muon's momentum is Nesterov's.
        ns_steps: Muon's Newton-Schulz steps.
        adjust_lr_fn: `match_rms_adamw` (arXiv 2502.16982) or `original`.

    Raises:
        ValueError: if there is no hidden matrix, or an argument is invalid.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
    ) -> None:
        groups = list(params)
        hidden = [group for group in groups if group[MATRICES]]
        rest = [group for group in groups if not group[MATRICES]]
        if not hidden:
            raise ValueError("the model has no hidden matrix to train")
        self._parts: dict[bool, Optimizer] = {
            True: Muon(hidden, lr, weight_decay, momentum, nesterov, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn)
        }
        if rest:
            self._parts[False] = AdamW(rest, lr, betas, eps, weight_decay)
        super().__init__([group for part in self._parts.values() for group in part.param_groups], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Does one step of both optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for matrices, part in self._parts.items():
            # Groups and state belong to this optimizer; loading a state may have replaced them.
            part.state, part.param_groups = self.state, [g for g in self.param_groups if g[MATRICES] == matrices]
            part.step()
        return loss

"""Optimizers that torch lacks: LARS, Muon beside AdamW, and SGD with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Muon, Optimizer


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling, for large batches (You et al. 2017, arXiv 1708.03888).

    The rate of a weight w with gradient g is scaled by `trust_coefficient * |w| / (|g| + weight_decay * |w|)`, so that
    each update is in proportion to its weight. Biases, norms and other vectors have no ratio, as is usual. The momentum
    adds up updates with their rates, as in the paper; `eps` is added to the divisor. Raises ValueError if an argument
    is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum: received {momentum}, must be at least 0 and below 1")
        if trust_coefficient <= 0 or eps < 0:
            raise ValueError("trust_coefficient must be above 0, and eps at least 0")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"trust_coefficient": trust_coefficient, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        loss = _loss(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        direction = gradient.add(parameter, alpha=group["weight_decay"])
        if parameter.ndim > 1:
            direction.mul_(_ratio(parameter, gradient, group))
        direction.mul_(group["lr"])
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        parameter.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(direction))


def _loss(closure: Callable[[], float] | None) -> float | None:
    """Returns what the argument of an optimizer's step computes, with gradients."""
    with torch.enable_grad():
        return None if closure is None else closure()


def _ratio(parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
    """Returns the factor of a weight's rate; 1 if the weight or its gradient is zero."""
    size, length = parameter.norm(), gradient.norm()
    ratio = group["trust_coefficient"] * size / (length + group["weight_decay"] * size + group["eps"])
    return torch.where((size > 0) & (length > 0), ratio, torch.ones_like(ratio))


MATRICES = "matrices"
"""Key of a parameter group: whether Muon trains it."""


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024) on hidden matrices; AdamW on vectors, embeddings, heads and kernels.

    Parameter groups have the key `matrices`: whether their parameters are hidden matrices. Weight decay is decoupled;
    Muon's update is scaled by `adjust_lr_fn`, `original` or to the size of AdamW's (`match_rms_adamw`, arXiv
    2502.16982). Raises ValueError if there is no hidden matrix, or an argument is invalid.
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
        loss = _loss(closure)
        for matrices, part in self._parts.items():
            # Groups and state belong to this optimizer; loading a state may have replaced them.
            part.state, part.param_groups = self.state, [g for g in self.param_groups if g[MATRICES] == matrices]
            part.step()
        return loss


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

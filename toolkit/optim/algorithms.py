"""LARS: SGD with a learning rate per tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling, for large batches (You et al. 2017, arXiv 1708.03888).

    The rate of a weight w with gradient g is scaled by `trust_coefficient * |w| / (|g| + weight_decay * |w|)`, so that
    each update is in proportion to its weight. Biases, norms and other vectors have no ratio, as is usual.

    Args:
        params: parameter groups.
        lr: learning rate, which includes no ratio.
        momentum: decay rate of the momentum, which adds up updates with their rates, as in the paper.
        weight_decay: weight decay, added to the gradient.
        trust_coefficient: size of an update relative to its weight, at a rate of 1.
        eps: added to the divisor of the ratio.

    Raises:
        ValueError: if an argument is out of range.
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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
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


def _ratio(parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
    """Returns the factor of a weight's rate; 1 if the weight or its gradient is zero."""
    size, length = parameter.norm(), gradient.norm()
    ratio = group["trust_coefficient"] * size / (length + group["weight_decay"] * size + group["eps"])
    return torch.where((size > 0) & (length > 0), ratio, torch.ones_like(ratio))

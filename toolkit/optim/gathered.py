"""Steps of optimizers on parameters that are split over processes."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.base.shards import fill, full, is_split


def gather_before_step(optimizer: torch.optim.Optimizer) -> None:
    """Makes each step of an optimizer gather one parameter after another, update it and keep this process's part.

    State of a parameter's shape (momentum) is split like the parameter; other state (row and column statistics) is
    complete on every process. Every process computes the same update, so that nothing depends on how parameters are
    split.

    Args:
        optimizer: an optimizer that updates each parameter by itself.
    """
    step = optimizer.step

    @torch.no_grad()
    def gathered(optimizer: torch.optim.Optimizer, closure: Any = None) -> None:
        members = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = []
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            for parameter in parameters:
                if parameter.grad is not None:
                    _update(optimizer, step, group, parameter)
            group["params"] = []
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            group["params"] = parameters

    optimizer.step = MethodType(gathered, optimizer)  # type: ignore[method-assign]


def step_by_layout(optimizer: torch.optim.Optimizer) -> None:
    """Makes each step of an optimizer update parameters with different layouts one after another.

    Kernels that update many parameters at once take either ordinary tensors or tensors of one device mesh.

    Args:
        optimizer: an optimizer that updates each parameter by itself.
    """
    step = optimizer.step

    def by_layout(optimizer: torch.optim.Optimizer, closure: Any = None) -> None:
        groups = optimizer.param_groups  # as of now: accelerate and a resumed run replace the list
        members = [group["params"] for group in groups]
        layouts = dict.fromkeys(_layout(parameter) for parameters in members for parameter in parameters)
        for layout in layouts:
            for group, parameters in zip(groups, members, strict=True):
                group["params"] = [parameter for parameter in parameters if _layout(parameter) == layout]
            step()
        for group, parameters in zip(groups, members, strict=True):
            group["params"] = parameters

    optimizer.step = MethodType(by_layout, optimizer)  # type: ignore[method-assign]


def _layout(parameter: Any) -> Any:
    return parameter.device_mesh if is_split(parameter) else None


def _update(optimizer: torch.optim.Optimizer, step: Any, group: dict[str, Any], parameter: Tensor) -> None:
    if not is_split(parameter):
        group["params"] = [parameter]
        step()
        return
    state = optimizer.state.pop(parameter, {})
    complete = nn.Parameter(full(parameter.detach()))
    complete.grad = full(parameter.grad)  # type: ignore[arg-type] # checked above
    optimizer.state[complete] = {k: full(v) if isinstance(v, Tensor) else v for k, v in state.items()}
    group["params"] = [complete]
    step()
    group["params"] = []
    fill(parameter, complete)
    optimizer.state[parameter] = {k: _split_like(parameter, v) for k, v in optimizer.state.pop(complete).items()}


def _split_like(parameter: Tensor, value: Any) -> Any:
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    part = torch.empty_like(parameter, dtype=value.dtype)
    fill(part, value)
    return part

"""Steps of optimizers whose parameters are split over different processes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from toolkit.base.shards import is_split
from toolkit.optim.state import unwrapped


def step_by_mesh(optimizer: Any) -> None:
    """Makes each step of an optimizer update parameters on one device mesh after those on another.

    torch's kernels that update many parameters at once (`fused`, `foreach`) refuse ordinary tensors and split ones
    together, and tensors that are split over different meshes.

    Args:
        optimizer: a `torch.optim.Optimizer` that updates each element by itself, or accelerate's wrapper of one.
    """
    inner = unwrapped(optimizer)
    step = inner.step

    def step_each(closure: Any = None) -> None:
        members = [group["params"] for group in inner.param_groups]
        for mesh in dict.fromkeys(_mesh(parameter) for parameters in members for parameter in parameters):
            for group, parameters in zip(inner.param_groups, members, strict=True):
                group["params"] = [parameter for parameter in parameters if _mesh(parameter) == mesh]
            step()
        for group, parameters in zip(inner.param_groups, members, strict=True):
            group["params"] = parameters

    inner.step = step_each  # type: ignore[method-assign, assignment]


def _mesh(parameter: Tensor) -> Any:
    return parameter.device_mesh if is_split(parameter) else None  # type: ignore[attr-defined]

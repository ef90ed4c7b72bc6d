"""Clipping of gradients that are split over processes in different ways."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from toolkit.base.shards import full, is_split, local


@torch.no_grad()
def clip_split(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Clips the gradient to a norm over all processes (0 turns clipping off) and returns its norm before clipping.

    Gradients that are ordinary tensors must be the same on every process.

    Args:
        parameters: parameters of any shape, split over any mesh or not.
        max_norm: maximum 2-norm.
    """
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    groups: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if is_split(gradient) else None  # type: ignore[attr-defined]
        groups.setdefault(key, []).append(gradient)
    norms = [full(torch.nn.utils.get_total_norm(group)) for group in groups.values()]
    norm = math.sqrt(sum(float(norm) ** 2 for norm in norms)) if len(norms) != 1 else float(norms[0])
    scale_gradients(parameters, norm, max_norm)
    return norm


@torch.no_grad()
def clip_values(parameters: Iterable[Tensor], limit: float) -> None:
    """Limits each element of the gradient to `-limit` to `limit`, as `torch.nn.utils.clip_grad_value_`.

    That function takes no parameters that are split over processes.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            local(parameter.grad).clamp_(-limit, limit)


@torch.no_grad()
def scale_gradients(parameters: Iterable[Tensor], norm: float, max_norm: float) -> None:
    """Scales the gradient of this norm such that its norm is at most `max_norm`, unless that is 0."""
    # As torch.nn.utils.clip_grad_norm_: the norm stays below the limit despite rounding.
    if max_norm and (factor := max_norm / (norm + 1e-6)) < 1:
        for parameter in parameters:
            if parameter.grad is not None:
                local(parameter.grad).mul_(factor)

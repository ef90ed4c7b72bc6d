"""Dropout with 16-bit random numbers, for CPUs.

PyTorch draws dropout on a CPU one element at a time from 64-bit numbers, which takes longer than all other element-wise
operations of a training step together. Here one 64-bit number of the same generator decides over four elements, so the
random state that is saved, restored and repeated by activation checkpointing is PyTorch's own. A rate is rounded to a
multiple of 1/65536, and the kept elements are scaled by the exact inverse of the kept share.

PyTorch's attention also has no fused kernel with dropout on a CPU, so attention with dropout is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from toolkit.base.shards import is_split
from toolkit.config.sections import TrainConfig
from toolkit.models.activations import around_training_passes

STEPS = 1 << 16
"""Rates are multiples of 1 / STEPS."""


def kept(like: Tensor, steps: int) -> Tensor:
    """Draws which elements dropout keeps at the rate `steps / 65536`: 1 for kept ones, 0 for others, uint8."""
    size = like.numel()
    words = torch.empty(-(-size // 4), dtype=torch.int64, device=like.device).random_(-(2**63), None)
    draws = words.view(torch.int16)[:size].view(like.shape)
    mask = torch.empty(like.shape, dtype=torch.uint8, device=like.device)
    return torch.ge(draws, steps - STEPS // 2, out=mask)  # int16 numbers start at -STEPS / 2


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Returns what `torch.nn.functional.dropout` does, with faster random numbers and `p` rounded to 1 / 65536."""
    steps = round(p * STEPS)
    if not training or inplace or not 0 < steps < STEPS or is_split(input):
        return functional.dropout(input, p, training, inplace)
    dropped: Tensor = _Dropout.apply(input, steps)
    return dropped


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Returns what `torch.nn.functional.scaled_dot_product_attention` does; with dropout, faster on a CPU.

    In half precision, attention weights are rounded after the softmax, which itself is computed in float32, as in
    transformers' `eager` attention. A query that sees no key gets 0.
    """
    steps = round(dropout_p * STEPS)
    ours = 0 < steps < STEPS and not is_split(query) and not (is_causal and attn_mask is not None)
    if ours and enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    if not ours or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    elif attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(query.dtype)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast(device, enabled=False):
        attended: Tensor = _Attention.apply(query, key, value, attn_mask, scale, steps)
    return attended


class _Dropout(torch.autograd.Function):
    """Dropout that keeps one byte per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, steps: int) -> Tensor:
        mask, ctx.factor = kept(input, steps), _factor(steps)
        ctx.save_for_backward(mask)
        return input.mul(mask).mul_(ctx.factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient.mul(mask).mul_(ctx.factor), None


class _Attention(torch.autograd.Function):
    """Attention with dropout. Small matrices are scaled instead of the weights, `[N, M]` for each head."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, steps: int
    ) -> Tensor:
        scores, lowest = torch.matmul(query * scale, key.mT), torch.finfo(query.dtype).min
        seeing = None
        # Weights of queries that see no key would be NaN: they become finite, and their results 0.
        if mask is not None and mask.dtype == torch.bool:
            seeing = mask.any(-1, keepdim=True)
            scores.masked_fill_(~mask, lowest)
        elif mask is not None:
            seeing = mask.amax(-1, keepdim=True) > -torch.inf
            scores.add_(mask).clamp_(min=lowest)
        weights = torch.softmax(scores, -1)
        drawn, ctx.scale, ctx.factor = kept(weights, steps), scale, _factor(steps)
        ctx.added = None if mask is None or mask.dtype == torch.bool else mask.shape
        ctx.save_for_backward(query, key, value, weights, drawn, seeing)
        attended = torch.matmul(weights * drawn, value * ctx.factor)
        return attended if seeing is None else attended.mul_(seeing)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, drawn, seeing = ctx.saved_tensors
        gradient = gradient if seeing is None else gradient * seeing
        with torch.autocast(gradient.device.type, enabled=False):
            of_value = torch.matmul((weights * drawn).mT, gradient * ctx.factor)
            of_weights = torch.matmul(gradient, (value * ctx.factor).mT).mul_(drawn)
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query = torch.matmul(of_scores, key * ctx.scale)
            of_key = torch.matmul(of_scores.mT, query * ctx.scale)
        of_mask = of_scores.sum_to_size(ctx.added) if ctx.needs_input_grad[3] and ctx.added is not None else None
        return of_query, of_key, of_value, of_mask, None, None


def _factor(steps: int) -> float:
    return STEPS / (STEPS - steps)


REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.dropout: dropout,
    functional.scaled_dot_product_attention: attention,
}
"""Functions of PyTorch, which models call themselves or by modules, and what is called instead."""


class FastDropout(TorchFunctionMode):
    """Calls the functions of this module instead of PyTorch's while it is entered."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls a function or what replaces it."""
        return REPLACED.get(function, function)(*args, **(kwargs or {}))


def is_chosen(train: TrainConfig, device: torch.device) -> bool:
    """Resolves `train.fast_dropout` for a device: GPUs draw random numbers fast enough."""
    if train.fast_dropout == "auto":
        return device.type == "cpu" and not train.torch_compile
    return train.fast_dropout


def use_fast_dropout(model: nn.Module) -> bool:
    """Uses this dropout in a model's training passes, unless it has no dropout; returns whether it has."""
    if not has_dropout(model):
        return False
    around_training_passes(model, FastDropout)
    return True


def has_dropout(model: nn.Module) -> bool:
    """Returns whether a module of a model drops elements, or a rate in its configuration is above 0."""
    modules = any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules())
    config = getattr(model, "config", None)
    return modules or (config is not None and _has_rate(config.to_dict()))


def _has_rate(fields: Mapping[str, Any]) -> bool:
    """Returns whether a field for dropout, or one of a part's configuration, is a number above 0."""
    return any(
        _has_rate(value) if isinstance(value, dict) else isinstance(value, float) and value > 0 and "drop" in str(name)
        for name, value in fields.items()
    )


def recomputing() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Returns the contexts of a checkpointed part of a forward pass and of its recomputation (`context_fn`).

    The recomputation is part of the backward pass, so it is not inside the model's forward pass.
    """
    return nullcontext(), FastDropout()

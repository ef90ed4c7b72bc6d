"""Stand-ins for what only a GPU does, in the simulation of a step on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class OffloadedActivations(saved_tensors_hooks):
    """Drops saved tensors and allocates them again in the backward pass, like `toolkit.models.activations`."""

    def __init__(self, model: nn.Module) -> None:
        resident = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

        def pack(tensor: Tensor) -> Any:
            stays = tensor.untyped_storage()._cdata in resident
            return tensor if stays else (tensor.shape, tensor.dtype, tensor.device)

        def unpack(packed: Any) -> Tensor:
            return packed if isinstance(packed, Tensor) else torch.empty(packed[0], dtype=packed[1], device=packed[2])

        super().__init__(pack, unpack)


@contextmanager
def fused_attention() -> Iterator[None]:
    """Runs `scaled_dot_product_attention` without dropout, since the CPU's fused kernel does not support it."""
    attend = nn.functional.scaled_dot_product_attention

    def fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        return attend(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)

    nn.functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = attend

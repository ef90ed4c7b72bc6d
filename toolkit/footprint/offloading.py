"""Activations that wait in CPU memory, in a simulated step."""

from __future__ import annotations

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

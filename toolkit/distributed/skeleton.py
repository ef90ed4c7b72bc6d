"""A copy of a model without the memory of its parameters, from which a complete model can be made later."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Skeleton:
    """Remembers a model's modules, buffers and tied weights, but not its parameters.

    Args:
        model: a complete model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        memo: dict[int, Any] = {
            id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            for parameter in model.parameters()
        }
        self.model = copy.deepcopy(model, memo)

    def filled(self, tensors: Mapping[str, Tensor]) -> PreTrainedModel:
        """Returns the model with these parameters and saved buffers, on the CPU; the skeleton is used up.

        Args:
            tensors: complete tensors by name, those of tied weights under one of their names.
        """
        own = self.model.state_dict(keep_vars=True)
        values = {id(own[name]): tensor for name, tensor in tensors.items()}
        made: dict[int, nn.Parameter] = {}
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in made:
                        made[id(parameter)] = nn.Parameter(values[id(parameter)], parameter.requires_grad)
                    module._parameters[name] = made[id(parameter)]
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = values.get(id(buffer), buffer).cpu()
        return self.model

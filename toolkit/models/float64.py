"""Models in float64, in which equal computations agree to about 15 digits whatever the order of their sums."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """Converts a model's parameters and buffers, and from then on its inputs, to float64."""

    def convert(module: nn.Module, arguments: tuple[Any, ...], inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        return arguments, inputs | {name: t.double() for name, t in tensors.items() if t.is_floating_point()}

    model.register_forward_pre_hook(convert, with_kwargs=True)
    return model.double()

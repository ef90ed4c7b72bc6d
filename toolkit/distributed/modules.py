"""The parts of a model that strategies split: its layers, and modules that share a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Returns the layers that can be checkpointed one by one, in model order."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def stacks_of(model: nn.Module) -> list[list[nn.Module]]:
    """Returns the lists of layers that can be checkpointed one by one and are in no other such layer."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    inside = {part for layer in layers_of(model) for part in layer.modules() if part is not layer}
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and module not in inside]
    stacks: list[list[nn.Module]] = [
        [layer for layer in each if isinstance(layer, GradientCheckpointingLayer)] for each in lists
    ]
    return [stack for each, stack in zip(lists, stacks, strict=True) if stack and len(stack) == len(each)]


def sharing_modules(model: nn.Module) -> list[list[nn.Module]]:
    """Returns groups of modules that share a parameter (tied weights), as connected components."""
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(module)
    groups: list[list[nn.Module]] = []
    for modules in owners.values():
        if len(modules) > 1:
            joined = [group for group in groups if any(module in group for module in modules)]
            merged = list(dict.fromkeys([module for group in joined for module in group] + modules))
            groups = [group for group in groups if group not in joined] + [merged]
    return groups


def trained_buffers(model: nn.Module) -> list[Tensor]:
    """Returns the saved floating-point buffers, which each data rank changes with its own rows (batch norm)."""
    saved = model.state_dict().keys()
    return [b for name, b in model.named_buffers() if name in saved and b.is_floating_point()]


@contextmanager
def generating_together(model: Any) -> Iterator[None]:
    """Makes a model's `generate` wait for all ranks, which gather its parameters together."""
    generate = getattr(model, "generate", None)
    if generate is not None:
        model.generate = partial(generate, synced_gpus=True)
    try:
        yield
    finally:
        if generate is not None:
            del model.generate

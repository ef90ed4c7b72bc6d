"""Finds the parts of a model: its backbone, its head, its repeated linear layers and its parameter counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

POOLER = "pooler"
"""Name of the pooler: part of the base model, but often newly initialised like the head, and trained like it."""


def backbone(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Returns the pretrained parts of a model, without its head, by name.

    This is the model's `base_model_prefix` or, for classes without such a module (T5, Whisper's classifier), each part
    that contains repeated layers.
    """
    base = getattr(model, model.base_model_prefix, None)
    if isinstance(base, nn.Module):
        return {model.base_model_prefix: base}
    return {
        name: part
        for name, part in model.named_children()
        if any(isinstance(module, nn.ModuleList) for module in part.modules())
    }


def head_modules(model: PreTrainedModel) -> list[str]:
    """Returns the names of the modules between the backbone and the task's outputs.

    Language models have none: their output layer is pretrained, and often shared with the embedding.
    """
    parts = backbone(model)
    if model.get_output_embeddings() is not None:
        return []
    pooler = [f"{name}.{POOLER}" for name, part in parts.items() if _has_parameters(getattr(part, POOLER, None))]
    return pooler + [name for name, module in model.named_children() if name not in parts and _has_parameters(module)]


def backbone_parameters(model: PreTrainedModel) -> list[str]:
    """Returns the names of the backbone's parameters, including those shared with the head, such as embeddings."""
    head = tuple(f"{name}." for name in head_modules(model))
    inside = {
        id(parameter)
        for name, part in backbone(model).items()
        for inner, parameter in part.named_parameters()
        if not f"{name}.{inner}".startswith(head)
    }
    return [name for name, parameter in model.named_parameters() if id(parameter) in inside]


def repeated_linears(model: PreTrainedModel) -> list[str]:
    """Returns the full names of the linear layers (attention and MLP) in the backbone's repeated layers."""
    from transformers.pytorch_utils import Conv1D

    found = []
    for part_name, part in backbone(model).items():
        lists = tuple(f"{name}." for name, module in part.named_modules() if isinstance(module, nn.ModuleList))
        # torch's attention module uses its output layer's weight directly, which would bypass an adapter.
        fused = tuple(f"{name}." for name, module in part.named_modules() if isinstance(module, nn.MultiheadAttention))
        found += [
            f"{part_name}.{name}"
            for name, module in part.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and name.startswith(lists) and not name.startswith(fused)
        ]
    return found


def suffixes(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the shortest dotted suffixes of the wanted names that match none of the other names."""
    wanted = set(wanted)
    others = {end for name in set(names) - wanted for end in _ends(name)}
    return sorted({next((end for end in _ends(name) if end not in others), name) for name in wanted})


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Returns the number of trained parameters and of all parameters; packed 4-bit weights are counted unpacked."""
    counts = [
        (parameter.numel() * (2 if type(parameter).__name__ == "Params4bit" else 1), parameter.requires_grad)
        for parameter in model.parameters()
    ]
    return sum(count for count, trained in counts if trained), sum(count for count, _ in counts)


def saved_bytes(model: nn.Module, adapters: bool = False) -> int:
    """Returns the bytes of the weights that a model's folder holds: all of them, or the trained ones of adapters."""
    parameters = (each for each in model.parameters() if each.requires_grad or not adapters)
    return sum(each.numel() * each.element_size() for each in parameters)


def _ends(name: str) -> list[str]:
    """Returns the dotted suffixes of a name, shortest first: `c`, `b.c`, `a.b.c`."""
    words = name.split(".")
    return [".".join(words[start:]) for start in reversed(range(len(words)))]


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())

"""What a model is made of: its backbone, its head, the linear layers that repeat, and how much of it is trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

POOLER = "pooler"
"""Stands inside the base model, but is often made anew with the head, and is as near to the task."""


def backbone(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Returns the parts of a model that were trained before it got its head, by their names.

    That is the base model that transformers knows, or, of classes that keep its parts side by side (T5, the classifier
    of Whisper), each part that holds repeated layers.
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
    """Returns the names of the modules that make a task's answer of what the backbone gives.

    A language model has none: what foresees its tokens was trained with the rest, and often is its embedding.
    """
    parts = backbone(model)
    if model.get_output_embeddings() is not None:
        return []
    pooler = [f"{name}.{POOLER}" for name, part in parts.items() if _has_parameters(getattr(part, POOLER, None))]
    return pooler + [name for name, module in model.named_children() if name not in parts and _has_parameters(module)]


def backbone_parameters(model: PreTrainedModel) -> list[str]:
    """Returns the names of the parameters of the backbone, which a head may share, as an embedding is."""
    head = tuple(f"{name}." for name in head_modules(model))
    inside = {
        id(parameter)
        for name, part in backbone(model).items()
        for inner, parameter in part.named_parameters()
        if not f"{name}.{inner}".startswith(head)
    }
    return [name for name, parameter in model.named_parameters() if id(parameter) in inside]


def repeated_linears(model: PreTrainedModel) -> list[str]:
    """Returns the full names of the linear layers inside the backbone's repeated layers: attention and MLP."""
    from transformers.pytorch_utils import Conv1D

    found = []
    for part_name, part in backbone(model).items():
        lists = tuple(f"{name}." for name, module in part.named_modules() if isinstance(module, nn.ModuleList))
        # An attention module of torch uses its output layer's weight itself, and would pass by an adapter.
        fused = tuple(f"{name}." for name, module in part.named_modules() if isinstance(module, nn.MultiheadAttention))
        found += [
            f"{part_name}.{name}"
            for name, module in part.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and name.startswith(lists) and not name.startswith(fused)
        ]
    return found


def suffixes(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns short ends of the wanted names, after a dot, that no other name has."""
    wanted = set(wanted)
    others = {end for name in set(names) - wanted for end in _ends(name)}
    return sorted({next((end for end in _ends(name) if end not in others), name) for name in wanted})


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Returns how many parameters are trained, and how many there are; those of 4 bits count as what they stand for."""
    counts = [
        (parameter.numel() * (2 if type(parameter).__name__ == "Params4bit" else 1), parameter.requires_grad)
        for parameter in model.parameters()
    ]
    return sum(count for count, trained in counts if trained), sum(count for count, _ in counts)


def _ends(name: str) -> list[str]:
    """`a.b.c`: `c`, `b.c`, `a.b.c`."""
    words = name.split(".")
    return [".".join(words[start:]) for start in reversed(range(len(words)))]


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())

"""Which models can be split into stages, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

from torch import nn

from toolkit.distributed.placement import layers_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ARCHITECTURES = frozenset({"bert", "roberta", "electra", "distilbert", "gpt2", "llama", "mistral", "qwen2", "vit"})
"""Model types with one stack of layers, between which only hidden states pass."""


@dataclass(frozen=True)
class Parts:
    """The modules of a model in the order of its forward pass: `before` (embeddings), `stack`, `after` (norm, head)."""

    before: Sequence[nn.Module]
    stack: nn.ModuleList
    after: Sequence[nn.Module]

    def costs(self) -> list[int]:
        """Returns the weights that a token is multiplied with in each layer and around the stack, not in embeddings."""
        costs = [_weights(layer.modules()) for layer in self.stack]
        costs[0] += _weights(self.before)
        costs[-1] += _weights(self.after)
        return costs


def _weights(modules: Iterable[nn.Module]) -> int:
    counted = [module for module in modules if not isinstance(module, nn.Embedding)]
    return sum(parameter.numel() for module in counted for parameter in module.parameters(recurse=False))


def parts_of(model: nn.Module) -> Parts:
    """Returns the parts of a model of `ARCHITECTURES`, with or without adapters in its layers.

    Modules belong in front of the stack or behind it by the order in which the model registers them, which is that of
    the forward pass in these architectures. Raises ValueError if the model has not exactly one stack of layers, or
    parameters outside the parts.
    """
    layers, modules = layers_of(model), list(model.named_modules())
    stacks = [i for i, (_, m) in enumerate(modules) if isinstance(m, nn.ModuleList) and list(m) == layers and layers]
    if len(stacks) != 1:
        raise ValueError(f"{len(layers)} layers of {type(model).__name__} are in {len(stacks)} lists, instead of one")
    (position,) = stacks
    path, stack = modules[position]
    parts = Parts(
        before=[module for name, module in modules[:position] if not _contains(name, path)],
        stack=stack,
        after=[module for name, module in modules[position:] if not _contains(path, name)],
    )
    found = {id(p) for module in (*parts.before, *parts.after) for p in module.parameters(recurse=False)}
    found |= {id(parameter) for parameter in stack.parameters()}
    if other := [name for name, parameter in model.named_parameters() if id(parameter) not in found]:
        raise ValueError(f"parameters of {type(model).__name__} are neither in layers nor around them: {other}")
    return parts


def _contains(outer: str, inner: str) -> bool:
    """Returns whether a module contains another one or is the same, by their dotted names."""
    return not outer or f"{inner}.".startswith(f"{outer}.")


def partition(costs: Sequence[float], stages: int) -> list[range]:
    """Returns consecutive layers for each stage, at least one, such that the highest cost of a stage is lowest."""
    until = [0, *accumulate(costs)]
    best: dict[int, tuple[float, float, tuple[int, ...]]]
    best = {end: (until[end], until[end] ** 2, (end,)) for end in range(1, len(until))}
    for stage in range(1, stages):
        for end in range(len(until) - 1, stage, -1):  # which need only those of fewer layers
            found: tuple[float, float, tuple[int, ...]] = (inf, inf, ())
            for start in range(end - 1, stage - 1, -1):
                cost, (highest, squares, ends) = until[end] - until[start], best[start]
                if cost > found[0]:  # as are the costs of more layers
                    break
                found = min(found, (max(highest, cost), squares + cost**2, (*ends, end)))
            best[end] = found
    ends = best[len(costs)][-1]
    return [range(start, end) for start, end in zip((0, *ends), ends, strict=False)]


def stage_problems(config: PreTrainedConfig, processes: int, chunks: int) -> list[str]:
    """Returns why a model cannot be split into stages, before its weights are loaded."""
    key = f"parallel.pipeline: received {processes}"
    if config.is_encoder_decoder:
        return [
            f"{key}, but {config.model_type} has two stacks: it generates its predictions, in 13 to 64 passes of the "
            "decoder per batch (counted in translation), and all stages but one would wait in each; set parallel.fsdp "
            "or parallel.tensor instead"
        ]
    if config.model_type not in ARCHITECTURES:
        return [
            f"{key}, but the layers of {config.model_type} are not known to pass on hidden states only; pipelines are "
            f"implemented for {', '.join(sorted(ARCHITECTURES))}; set parallel.fsdp instead"
        ]
    layers = config.num_hidden_layers
    if layers >= processes * chunks:
        return []
    needed = f"{processes * chunks} ({chunks} per process)" if chunks > 1 else f"{processes}"
    return [f"{key}, which needs at least {needed} layers, but the model has {layers}; set it to a smaller number"]

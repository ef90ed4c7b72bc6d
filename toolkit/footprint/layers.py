"""Finds the repeated layers of a model and measures their weights and outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

SHARE = 0.2
"""Lists of modules with less than this share of the weights of the largest list are not the model's layers."""


class Layers:
    """Records the sizes of the outputs of a model's repeated layers.

    Attributes:
        modules: the layers.
        parameters: bytes of weights of the largest layer.
        boundary: bytes of the largest output of a layer.
        crossing: bytes of the outputs of all layers, each counted once.
    """

    def __init__(self, model: nn.Module) -> None:
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 0]
        inner = {id(part) for parts in lists for part in parts.modules() if part is not parts}
        outer = {id(parts): _bytes(parts) for parts in lists if id(parts) not in inner}
        # The convolutions in front of speech and vision models are a list as well, but one with few weights.
        largest = max(outer.values(), default=0)
        self.modules = [layer for parts in lists if outer.get(id(parts), -1) >= SHARE * largest for layer in parts]
        self.parameters, self.boundary, self.crossing = max(map(_bytes, self.modules), default=0), 0, 0
        self._seen: set[int] = set()
        for layer in self.modules:
            layer.register_forward_hook(self._record)

    def _record(self, module: nn.Module, arguments: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and id(module) not in self._seen:  # skips recomputations
            self._seen.add(id(module))
            self.boundary = max(self.boundary, first.numel() * first.element_size())
            self.crossing += first.numel() * first.element_size()


def _bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())

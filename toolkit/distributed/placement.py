"""Gives every process the weights of a model that only the main process has built completely.

The other processes build it on the meta device, where tensors have shapes but no memory, and receive one tensor after
another. So no other process ever holds the complete model, provided that the strategy splits each part of it as soon
as it has been delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary


class Delivery:
    """Sends the main process's weights. Every process must make the same calls.

    Args:
        device: where the weights are needed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Nothing is kept here that a strategy has split or removed.
        self._done: WeakSet[nn.Module] = WeakSet()
        self._values = WeakTensorKeyDictionary()

    @torch.no_grad()
    def __call__(self, modules: Iterable[nn.Module], keep: Callable[[nn.Module], bool] = lambda module: True) -> None:
        """Puts the modules' own tensors on the device; modules that were delivered before are left alone.

        Args:
            modules: modules of the model, the same on every process; their submodules are not included.
            keep: whether this process needs the parameters of a module. Others stay where they are.
        """
        modules = [module for module in modules if module not in self._done]
        kept = {parameter for module in modules if keep(module) for parameter in module.parameters(recurse=False)}
        for module in modules:
            self._done.add(module)
            for table, name, tensor in _own_tensors(module):
                value = self._value(tensor, tensor in kept or not isinstance(tensor, nn.Parameter))
                if value is not None:
                    table[name] = value

    def _value(self, tensor: Tensor, kept: bool) -> Tensor | None:
        """Returns the main process's values of a tensor, the same object for tied ones, and None if it is not kept."""
        if tensor not in self._values:
            sent = dist.get_rank() == 0
            value = tensor.detach().to(self.device).contiguous() if sent else _empty(tensor, self.device)
            dist.broadcast(value.view(-1).view(torch.uint8), src=0)  # as bytes: gloo does not send all types
            if isinstance(tensor, nn.Parameter):
                value = nn.Parameter(value, tensor.requires_grad)
            self._values[tensor] = value if kept else None
        found: Tensor | None = self._values[tensor]
        return found


def layout(model: nn.Module) -> list[tuple[str, tuple[int, ...], torch.dtype, int]]:
    """Returns name, shape and type of each tensor of a model, and the number of the first one that it is tied to."""
    first: dict[int, int] = {}
    entries = []
    for prefix, module in model.named_modules():
        for _, name, tensor in _own_tensors(module):
            tied = first.setdefault(id(tensor), len(first))
            entries.append((f"{prefix}.{name}", tuple(tensor.shape), tensor.dtype, tied))
    return entries


def _own_tensors(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Yields a module's parameters, buffers and other tensors: the dictionary that holds it, its name, the tensor."""
    for table in (module._parameters, module._buffers, vars(module)):
        for name, value in list(table.items()):
            if isinstance(value, Tensor):
                yield table, name, value


def _empty(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

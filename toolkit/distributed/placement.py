"""Gives every process the weights of a model that only the main process has built completely.

The other processes build it on the meta device, where tensors have shapes but no memory, and receive one tensor after
another. So no other process ever holds the complete model, provided that the strategy splits each part of it as soon
as it has been delivered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils.weak import WeakTensorKeyDictionary

from toolkit.base.package import replaced

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Delivery:
    """Sends the main process's weights to the `device` of each. Every process must make the same calls."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Nothing is kept here that a strategy has split or removed.
        self._done: WeakSet[nn.Module] = WeakSet()
        self._values = WeakTensorKeyDictionary()

    @torch.no_grad()
    def __call__(self, modules: Iterable[nn.Module], keep: Callable[[nn.Module], bool] = lambda module: True) -> None:
        """Puts the modules' own tensors on the device, but parameters only of modules that this process keeps."""
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


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Returns the layers that can be checkpointed one by one, in model order."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def stacks_of(model: nn.Module) -> list[list[nn.Module]]:
    """Returns the lists of layers that can be checkpointed one by one and are in no other such layer."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    inside = {part for layer in layers_of(model) for part in layer.modules() if part is not layer}
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and module not in inside]
    return [[*each] for each in lists if each and all(isinstance(layer, GradientCheckpointingLayer) for layer in each)]


def norms_of(model: nn.Module) -> list[nn.Module]:
    """Returns the normalisation layers with parameters of their own."""
    return [module for module in model.modules() if module._parameters and _is_norm(module)]


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ and not module._modules


def only_products(module: nn.Module, apart: Iterable[nn.Module] = ()) -> bool:
    """Returns whether the weights of a module are factors of products, tables or norms, but for parts that are `apart`.

    Autocast computes products in 16 bits anyway; what is added or multiplied element by element stays in float32.
    """
    from transformers.pytorch_utils import Conv1D

    others = {part for each in apart for part in each.modules()}
    holders = (part for part in module.modules() if part._parameters and part not in others)
    return all(isinstance(each, nn.Linear | nn.Embedding | _ConvNd | Conv1D) or _is_norm(each) for each in holders)


def keep_stream(model: Any, layers: Iterable[nn.Module]) -> None:
    """Keeps in float32 what layers add up, as autocast does, where their weights are gathered in 16 bits."""

    def enter(layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_float32(arguments[0]), *arguments[1:]) if arguments else arguments

    for layer in layers:
        layer.register_forward_pre_hook(enter)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    with suppress(NotImplementedError):
        tables.append(model.get_input_embeddings())
    for table in tables:
        table.register_forward_hook(lambda module, arguments, output: _float32(output))


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def gathered(module: Any, free: bool = True) -> Iterator[None]:
    """Gathers the parameters that FSDP2 shards as those of a module; may free them at the end if they were not there.

    Every process of the mesh must enter it. Within a module's own passes FSDP2 does both itself.
    """
    from torch.distributed.fsdp import FSDPModule

    groups = module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else []
    if gathers := not all(group.is_unsharded for group in groups):
        module.unshard()
    try:
        yield
    finally:
        if gathers and free:
            module.reshard()


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


def generating_together(model: Any) -> AbstractContextManager[None]:
    """Makes a model's `generate` wait for all ranks, which gather its parameters together."""
    generate = getattr(model, "generate", None)
    return nullcontext() if generate is None else replaced(model, "generate", partial(generate, synced_gpus=True))


class Skeleton:
    """Remembers a complete model's modules, buffers and tied weights, but not its parameters."""

    def __init__(self, model: PreTrainedModel) -> None:
        memo: dict[int, Any] = {
            id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            for parameter in model.parameters()
        }
        self.model = copy.deepcopy(model, memo)

    def filled(self, tensors: Mapping[str, Tensor]) -> PreTrainedModel:
        """Returns the model with these parameters and saved buffers, on the CPU; the skeleton is used up.

        The tensors are complete, those of tied weights under one of their names.
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

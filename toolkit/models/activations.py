"""Saves activation memory by recomputing activations or offloading them to the CPU. Gradients stay the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from toolkit.base.errors import ConfigError
from toolkit.config.sections import TrainConfig
from toolkit.distributed.modules import layers_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEY = "train.activation_checkpointing"
Contexts: TypeAlias = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
"""Returns the contexts of a part of the forward pass and of its recomputation in the backward pass."""


def spare_activations(model: PreTrainedModel, train: TrainConfig, contexts: Contexts | None = None) -> None:
    """Sets up activation checkpointing and offloading as configured in `train`.

    Args:
        model: the model.
        train: the settings.
        contexts: the contexts of what is recomputed, or None.

    Raises:
        ConfigError: if the model does not support the setting.
    """
    if train.activation_checkpointing != "none":
        _checkpoint(model, train.activation_checkpointing, contexts)
    if train.activation_offload:
        offload_activations(model)


def _checkpoint(model: PreTrainedModel, setting: str, contexts: Contexts | None) -> None:
    name = type(model).__name__
    if not model.supports_gradient_checkpointing:
        raise ConfigError([f"{KEY}: received {setting!r}, but {name} cannot recompute activations; set it to none"])
    arguments: dict[str, Any] = {"use_reentrant": False} | ({"context_fn": contexts} if contexts else {})
    try:
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments)
        else:  # before transformers 5.20 or so
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)
    except ValueError as error:
        raise ConfigError([f"{KEY}: received {setting!r}, but {error}"]) from error
    layers = layers_of(model)
    if setting != "full":
        if not layers:
            raise ConfigError([
                f"{KEY}: received {setting!r}, but the layers of {name} are checkpointed all or none; use full"
            ])  # fmt: skip
        every = int(setting.split("_")[1])
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = number % every == 0  # type: ignore[assignment]
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for layer in layers for part in layer.modules()):
        raise ConfigError([
            f"{KEY}: received {setting!r}, but the layers of {name} have batch normalisation, whose running statistics "
            "would count every micro-batch twice; set it to none"
        ])  # fmt: skip


def offload_activations(model: nn.Module) -> None:
    """Keeps the tensors saved for the backward pass in CPU memory; parameters stay on the device."""
    entered: list[ExitStack] = []

    def before(module: nn.Module, arguments: Any) -> None:
        entered.append(ExitStack())
        if module.training and torch.is_grad_enabled():
            resident = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
            entered[-1].enter_context(_Offload(resident))

    def after(module: nn.Module, arguments: Any, outputs: Any) -> None:
        entered.pop().close()

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after, always_call=True)


class _Offload(saved_tensors_hooks):
    """Like `torch.autograd.graph.save_on_cpu`, but does not copy the weights that layers save for their gradients."""

    def __init__(self, resident: set[int]) -> None:
        pinned = torch.accelerator.is_available()

        def pack(tensor: Tensor) -> tuple[torch.device, Tensor]:
            if tensor.untyped_storage().data_ptr() in resident:
                return tensor.device, tensor
            copy = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=pinned)
            return tensor.device, copy.copy_(tensor)

        def unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor.to(device, non_blocking=pinned)

        super().__init__(pack, unpack)

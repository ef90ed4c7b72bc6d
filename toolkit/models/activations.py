"""Saves activation memory: recomputes, offloads or compresses activations. Only compression changes gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from toolkit.base.errors import ConfigError
from toolkit.base.shards import local
from toolkit.config.sections import TrainConfig
from toolkit.distributed.placement import layers_of, stacks_of
from toolkit.models.segments import Contexts, segment_layers
from toolkit.models.unpadded.families import LAYERDROP

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LEVELS = 127
"""Largest stored whole number of `int8`; the smallest is its negative."""
_exact: ContextVar[bool] = ContextVar("exact", default=False)


def to_bf16(tensor: Tensor) -> tuple[Tensor, ...]:
    """Returns a float32 or float64 tensor in bfloat16, with 8 bits of mantissa; infinities become finite (masks)."""
    most = torch.finfo(torch.bfloat16).max
    return (tensor.clamp(-most, most).to(torch.bfloat16),)


def from_bf16(stored: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """Returns what `to_bf16` has stored, in the former type."""
    return stored[0].to(dtype)


def to_int8(tensor: Tensor) -> tuple[Tensor, ...]:
    """Returns a tensor as whole numbers from -127 to 127, and the scale of each vector along the last dimension."""
    most = torch.finfo(tensor.dtype).max
    tensor = tensor.clamp(-most, most)  # masks
    scale = tensor.abs().amax(dim=-1, keepdim=True).div_(LEVELS)
    whole = tensor.div_(torch.where(scale > 0, scale, torch.ones_like(scale))).round_()
    return whole.to(torch.int8), scale


def from_int8(stored: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """Returns what `to_int8` has stored, in the former type."""
    whole, scale = stored
    return whole.to(dtype).mul_(scale)


KINDS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, ...]], Callable[[tuple[Tensor, ...], torch.dtype], Tensor]]] = {
    "bf16": (to_bf16, from_bf16),
    "int8": (to_int8, from_int8),
}
"""How each `train.activation_compression` stores a tensor and restores it."""


@contextmanager
def exact_activations() -> Iterator[None]:
    """Stores activations as they are in forward passes inside the block."""
    token = _exact.set(True)
    try:
        yield
    finally:
        _exact.reset(token)


class _Stored:
    """A compressed tensor; the same one for all operations that need the same tensor."""

    def __init__(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> None:
        self.parts, self.dtype = parts, dtype


class Compressed(saved_tensors_hooks):
    """Stores tensors for the backward pass in fewer bits, except whole numbers and parameters (storages `resident`)."""

    def __init__(self, kind: str, resident: set[int]) -> None:
        store, restore = KINDS[kind]
        # A weak reference keeps the address of a storage from being used again, so equal addresses are one storage.
        known: dict[Any, tuple[StorageWeakRef, weakref.ref[_Stored]]] = {}

        def pack(tensor: Tensor) -> Tensor | _Stored:
            storage = tensor.untyped_storage()
            wide = tensor.is_floating_point() and tensor.element_size() > (2 if kind == "bf16" else 1)
            # Nothing that depends on the number of rows or the padding decides about it.
            vectors = tensor.ndim > 1 and tensor.shape[-1] > 1
            if _exact.get() or not wide or not vectors or storage._cdata in resident:
                return tensor
            key = storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version
            before = known[key][1]() if key in known else None
            if before is not None:
                return before
            stored = _Stored(store(tensor.detach()), tensor.dtype)
            known[key] = StorageWeakRef(storage), weakref.ref(stored)
            return stored

        def unpack(packed: Tensor | _Stored) -> Tensor:
            return restore(packed.parts, packed.dtype) if isinstance(packed, _Stored) else packed

        super().__init__(pack, unpack)


KEY = "train.activation_checkpointing"
SELECTIVE = "selective"
PRODUCTS = ("mm", "addmm", "convolution")
"""Operations of aten whose results `selective` keeps: products with weights, most of the time of a forward pass.
Attention is recomputed: its matrices are large, its dropout draws random numbers, which a recomputation must draw
again, and `toolkit.models.fast_dropout` changes its products (`bmm`) in place, which torch would not notice."""


def spare_activations(model: PreTrainedModel, train: TrainConfig, contexts: Contexts | None = None) -> None:
    """Sets up activation checkpointing, with the contexts of recomputed parts, compression and offloading.

    Raises ConfigError if the model does not support a setting.
    """
    if train.activation_checkpointing != "none":
        _checkpoint(model, train.activation_checkpointing, contexts)
    if train.activation_compression != "none":
        if train.activation_compression == "int8" and any(isinstance(part, nn.Conv1d) for part in model.modules()):
            raise ConfigError([
                f"train.activation_compression: received 'int8', but {type(model).__name__} has convolutions over "
                "time, whose results have a scale that depends on padding; set it to bf16"
            ])  # fmt: skip
        store_activations(model, partial(Compressed, train.activation_compression))
    if train.activation_offload:
        store_activations(model, _Offload)


def _rejected(setting: str, why: object) -> ConfigError:
    return ConfigError([f"{KEY}: received {setting!r}, but {why}"])


def _checkpoint(model: PreTrainedModel, setting: str, contexts: Contexts | None) -> None:
    name = type(model).__name__
    if not model.supports_gradient_checkpointing:
        raise _rejected(setting, f"{name} cannot recompute activations; set it to none")
    layers = layers_of(model)
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for layer in layers for part in layer.modules()):
        twice = "whose running statistics would count every micro-batch twice"
        raise _rejected(setting, f"the layers of {name} have batch normalisation, {twice}; set it to none")
    if "segments" in setting:
        _checkpoint_segments(model, setting, contexts)
        return
    if setting == SELECTIVE:
        contexts = partial(_selective, contexts)
    arguments: dict[str, Any] = {"use_reentrant": False} | ({"context_fn": contexts} if contexts else {})
    try:
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments)
        else:  # before transformers 5.20 or so
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)
    except ValueError as error:
        raise _rejected(setting, error) from error
    if setting.startswith("every"):
        if not layers:
            raise _rejected(setting, f"the layers of {name} are checkpointed all or none; use full")
        every = int(setting.split("_")[1])
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = number % every == 0  # type: ignore[assignment]


def _checkpoint_segments(model: PreTrainedModel, setting: str, contexts: Contexts | None) -> None:
    stacks, name = stacks_of(model), type(model).__name__
    if not stacks:
        raise _rejected(setting, f"{name} has no list of layers to divide; use full")
    if skipped := [key for key in LAYERDROP if getattr(model.config, key, 0)]:
        skips = f"skips layers at random (model.config_overrides.{skipped[0]})"
        raise _rejected(setting, f"{name} {skips}; set that to 0, or use full")
    nested, number = setting.startswith("nested"), setting.removeprefix("segments").strip("_")
    for stack in stacks:
        segment_layers(stack, 1 if nested else int(number) if number else None, contexts, nested)


def _selective(contexts: Contexts | None) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Returns the contexts that keep products with weights, inside the contexts of recomputed parts."""
    kept = {getattr(torch.ops.aten, name).default for name in PRODUCTS}

    def policy(context: Any, operation: Any, *arguments: Any, **more: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE

    pairs = [contexts()] if contexts else []
    pairs.append(create_selective_checkpoint_contexts(policy))
    return _all_of(forward for forward, _ in pairs), _all_of(recomputed for _, recomputed in pairs)


@contextmanager
def _all_of(contexts: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as entered:
        for context in contexts:
            entered.enter_context(context)
        yield


def store_activations(model: nn.Module, hooks: Callable[[set[int]], saved_tensors_hooks]) -> None:
    """Stores a model's tensors for the backward pass by `hooks(storages of its parameters)`, which stay as they are."""
    resident: set[int] = set()

    def context() -> AbstractContextManager[Any]:
        resident.clear()
        add(model)
        return hooks(resident) if torch.is_grad_enabled() else nullcontext()

    def add(module: nn.Module, *arguments: Any) -> None:
        resident.update(local(parameter).untyped_storage()._cdata for parameter in module.parameters())

    around_training_passes(model, context)
    layers = layers_of(model)
    for module in model.modules():  # their parameters may be gathered for their pass only
        if module in layers or module._parameters:
            module.register_forward_pre_hook(add)


def around_training_passes(model: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Enters a context in each forward pass of a model in training mode."""
    entered: list[AbstractContextManager[Any]] = []

    def before(module: nn.Module, arguments: Any) -> None:
        entered.append(context() if module.training else nullcontext())
        entered[-1].__enter__()

    def after(module: nn.Module, arguments: Any, outputs: Any) -> None:
        if entered:  # else a hook before this one has failed
            entered.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after, always_call=True)


class _Offload(saved_tensors_hooks):
    """Like `torch.autograd.graph.save_on_cpu`, but does not copy the weights that layers save for their gradients."""

    def __init__(self, resident: set[int]) -> None:
        pinned = torch.accelerator.is_available()

        def pack(tensor: Tensor) -> tuple[torch.device, Tensor]:
            if tensor.untyped_storage()._cdata in resident:
                return tensor.device, tensor
            copy = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=pinned)
            return tensor.device, copy.copy_(tensor)

        def unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor.to(device, non_blocking=pinned)

        super().__init__(pack, unpack)

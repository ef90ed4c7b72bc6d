"""Activations that are stored with fewer bits between the forward and the backward pass.

Chen et al. 2021 (ActNN, arXiv 2104.14129) and Liu et al. 2022 (GACT, arXiv 2206.11357) store activations with few bits.
Here every vector along the last dimension has a scale of its own and rounds to the nearest number, so what is stored of
a row depends neither on other rows nor on padding: the gradient is the same for every split of a window.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

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
    """Stores what the backward pass needs with fewer bits; parameters, whole numbers and single numbers stay.

    Args:
        kind: a key of `KINDS`.
        resident: the parameters' storages (`_cdata`).
    """

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

"""Keeps the real values of small fake tensors, since models read masks and lengths.

A fake tensor has no values, yet a model may check whether any position is padded, or select the masked positions.
So operations on known values also run for real, as long as their results are small (`MAX_INTEGERS`, `MAX_FLOATS`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_map_only

from toolkit.base.errors import InputError

MAX_INTEGERS, MAX_FLOATS = 2**22, 2**9
"""Number of elements up to which the values of an integer or boolean tensor, and of a float tensor, are kept."""
_VALUE = "_planned_value"
_SCALARS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}
_COMPARISONS = {torch.ops.aten.equal.default}
_SIZED_BY_VALUES = {
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.repeat_interleave.Tensor,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_consecutive.default,
    torch.ops.aten.bincount.default,
}
_INDEXED = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
}


class UnknownValue(InputError):  # noqa: N818 - names the cause
    """Raised if a training step cannot be simulated on fake tensors.

    Args:
        operation: the operation, or a few words on the cause.
    """

    def __init__(self, operation: Any) -> None:
        super().__init__(
            f"the training step of this model cannot be simulated without real values ({operation}); train a few "
            "steps instead (train.max_steps=3) and read the measured memory in the report of that run"
        )


def known(tensor: Tensor) -> Tensor | None:
    """Returns a tensor's values, or None if they are not known."""
    if isinstance(tensor, FakeTensor):
        return getattr(tensor, _VALUE, None)
    return tensor


def _real(args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Returns the arguments with real tensors in place of fake ones, or None if the values of one are not known."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    if any(known(tensor) is None for tensor in tensors):
        return None
    found: tuple[Any, Any] = tree_map_only(Tensor, known, (args, kwargs))
    return found


def _small(result: Any) -> bool:
    """Returns whether the values of a result are kept: masks and lengths, or a few floats (drop rates, code books)."""
    if not isinstance(result, Tensor):
        return False
    return result.numel() <= (MAX_FLOATS if result.is_floating_point() or result.is_complex() else MAX_INTEGERS)


def follow(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Runs an operation on real tensors as well, if its inputs are known and its result is small."""
    parts = result if isinstance(result, list | tuple) else (result,)
    if not parts or "empty" in func._opname or not all(_small(part) for part in parts):
        return
    real = _real(args, kwargs)
    if real is None:
        for part in parts:
            part.__dict__.pop(_VALUE, None)
        return
    with no_dispatch():
        values = func(*real[0], **_on_cpu(real[1]))
    for part, value in zip(parts, values if isinstance(values, list | tuple) else (values,), strict=True):
        if isinstance(part, FakeTensor):
            setattr(part, _VALUE, value)


def _on_cpu(kwargs: Any) -> Any:
    """Returns the arguments with the device CPU: values are kept there, whatever the fake tensor's device."""
    return kwargs | {"device": torch.device("cpu"), "pin_memory": False} if "device" in kwargs else kwargs


def dynamic(func: Any, args: Any, kwargs: Any, fake: FakeTensorMode, guess: bool) -> tuple[Any, bool]:
    """Runs an operation if its result, or the size of its result, depends on values.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.
        fake: the mode of the fake tensors.
        guess: whether an unknown boolean or integer counts as False. Initializers of weights and optimizers allocate
            the same memory for either value.

    Returns:
        The result, and whether this is such an operation; if it is not, it was not run.

    Raises:
        UnknownValue: if the values are not known.
    """
    if func not in _SCALARS and func not in _COMPARISONS and func not in _SIZED_BY_VALUES:
        return None, False
    if func is torch.ops.aten.masked_select.default and known(args[0]) is None:
        mask = known(args[1])
        if mask is None:
            raise UnknownValue(func)
        return args[0].new_empty(int(mask.expand(torch.broadcast_shapes(mask.shape, args[0].shape)).sum())), True
    real = _real(args, kwargs)
    if real is None and func in _SCALARS and (guess or args[0].is_floating_point()):
        # Floats scale results and do not change shapes or branches; booleans and integers do.
        return args[0].dtype.is_floating_point and 1.0, True
    if real is None:
        raise UnknownValue(func)
    with no_dispatch():
        values = func(*real[0], **real[1])
    return tree_map_only(Tensor, lambda value: as_fake(value, fake), values), True


def as_fake(value: Tensor, fake: FakeTensorMode) -> Tensor:
    """Returns a fake tensor of the same shape and type that keeps its values if it is small."""
    if isinstance(value, FakeTensor):
        return value
    made: Tensor = fake.from_tensor(value)
    if _small(made):
        setattr(made, _VALUE, value)
    return made


def with_positions(func: Any, args: Any, fake: FakeTensorMode) -> Any:
    """Replaces masks among the indices of an operation by positions, so that the shape of its result is known.

    Raises:
        UnknownValue: if a mask's values are not known.
    """
    if func not in _INDEXED:
        return args
    indices: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
            continue
        mask = known(index)
        if mask is None:
            raise UnknownValue(func)
        with no_dispatch():
            positions = [part.contiguous() for part in mask.nonzero().unbind(1)]
        indices += [as_fake(part, fake) for part in positions]
    return (args[0], indices, *args[2:])

"""Values of small integer tensors, beside their fakes: models look at masks and lengths to decide what to do.

A tensor without memory has no values, yet a model may ask whether any position is padded, or take the masked ones.
So operations whose inputs are known are done for real as well, as long as they are about integers and small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_map_only

from toolkit.base.errors import InputError

MOST_INTEGERS, MOST_FLOATS = 2**22, 2**9
_VALUE = "_planned_value"
_SCALARS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}
_WHOLE = {torch.ops.aten.equal.default}
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


class UnknownValue(InputError):  # noqa: N818 - what is unknown, not what went wrong
    """Raised if a step needs values that only a real computation has."""

    def __init__(self, operation: Any) -> None:
        super().__init__(
            f"this model's step cannot be simulated without real values ({operation}); train a few steps instead "
            "(train.max_steps=3), and see the memory in the report of that run"
        )


def known(tensor: Tensor) -> Tensor | None:
    """Returns a tensor's values, None where they are not known."""
    if isinstance(tensor, FakeTensor):
        return getattr(tensor, _VALUE, None)
    return tensor


def _real(args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Returns arguments with values in place of fakes, or None if one is not known."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    if any(known(tensor) is None for tensor in tensors):
        return None
    found: tuple[Any, Any] = tree_map_only(Tensor, known, (args, kwargs))
    return found


def _small(result: Any) -> bool:
    """Whether a result is something to decide by: integers, or a few numbers (rates of layers, code books)."""
    if not isinstance(result, Tensor):
        return False
    return result.numel() <= (MOST_FLOATS if result.is_floating_point() or result.is_complex() else MOST_INTEGERS)


def follow(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Does an operation for real as well, if its inputs are known and its result is small."""
    parts = result if isinstance(result, list | tuple) else (result,)
    if not parts or "empty" in func._opname or not all(_small(part) for part in parts):
        return
    real = _real(args, kwargs)
    if real is None:
        for part in parts:
            part.__dict__.pop(_VALUE, None)
        return
    with no_dispatch():
        values = func(*real[0], **_here(real[1]))
    for part, value in zip(parts, values if isinstance(values, list | tuple) else (values,), strict=True):
        if isinstance(part, FakeTensor):
            setattr(part, _VALUE, value)


def _here(kwargs: Any) -> Any:
    """Values are kept on the CPU, wherever their fakes are."""
    return kwargs | {"device": torch.device("cpu"), "pin_memory": False} if "device" in kwargs else kwargs


def dynamic(func: Any, args: Any, kwargs: Any, fake: FakeTensorMode, guess: bool) -> tuple[Any, bool]:
    """Does an operation whose result, or whose result's size, depends on values.

    Args:
        func: the operation.
        args: its arguments.
        kwargs: its arguments by name.
        fake: the mode that makes tensors without memory.
        guess: whether an unknown truth is taken for false, as suits new weights (are any to be drawn again?) and
            optimizers, who do the same to memory whatever they decide.

    Returns:
        The result, and whether this is such an operation.

    Raises:
        UnknownValue: if the values are not known.
    """
    if func not in _SCALARS and func not in _WHOLE and func not in _SIZED_BY_VALUES:
        return None, False
    if func is torch.ops.aten.masked_select.default and known(args[0]) is None:
        mask = known(args[1])
        if mask is None:
            raise UnknownValue(func)
        return args[0].new_empty(int(mask.expand(torch.broadcast_shapes(mask.shape, args[0].shape)).sum())), True
    real = _real(args, kwargs)
    if real is None and func in _SCALARS and (guess or args[0].is_floating_point()):
        # A float is the size of something, and is computed with; what is decided by is a truth or a count.
        return args[0].dtype.is_floating_point and 1.0, True
    if real is None:
        raise UnknownValue(func)
    with no_dispatch():
        values = func(*real[0], **real[1])
    return tree_map_only(Tensor, lambda value: as_fake(value, fake), values), True


def as_fake(value: Tensor, fake: FakeTensorMode) -> Tensor:
    """Returns a tensor without memory, that keeps its values in sight if they are few."""
    if isinstance(value, FakeTensor):
        return value
    made: Tensor = fake.from_tensor(value)
    if _small(made):
        setattr(made, _VALUE, value)
    return made


def with_positions(func: Any, args: Any, fake: FakeTensorMode) -> Any:
    """Turns masks that index into positions, whose number is known then.

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

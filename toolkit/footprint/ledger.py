"""Counts the memory and floating-point operations of a computation by running it on fake tensors."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.flop_counter import flop_registry

from toolkit.base.errors import InputError
from toolkit.base.package import replaced

MAX_INTEGERS, MAX_FLOATS = 2**22, 2**9
"""Number of elements up to which the values of an integer or boolean tensor, and of a float tensor, are kept."""
_VALUE = "_planned_value"
_SCALARS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}
_DEVICE = torch.ops.prim.device.default
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
    """A training step cannot be simulated on fake tensors, because of an operation or another cause."""

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
    """Runs an operation whose result depends on values, and says whether it is one; with `guess`, unknowns are 0."""
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
    """Replaces masks among an operation's indices by positions, which give its result a shape (or UnknownValue)."""
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


WORKING = "working"
"""Kind of memory that has no other kind."""


class Ledger(TorchDispatchMode):
    """Counts allocated bytes by kind, their peak, and floating-point operations.

    A storage counts from its creation until its last reference is gone, as with an ideal allocator. Temporary memory
    inside kernels is not counted.

    `torch.distributed._tools.mem_tracker.MemTracker` reports the same weights and optimizer state, and peaks within
    2 % for BERT, GPT-2, T5 and LLaMA. But it fails on models that read values (wav2vec2 reads its mask), does not
    separate logits and copies of weights from other memory, and does not count operations.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.fake = fake
        self.alive: Counter[str] = Counter()
        """Allocated bytes by kind."""
        self.at_peak: Counter[str] = Counter()
        """Allocated bytes by kind when their sum was largest."""
        self.flops = 0
        """Floating-point operations; a multiply-add counts as two (`torch.utils.flop_counter`)."""
        self.recomputed = 0
        """Part of `flops` that recomputes the forward pass during the backward pass."""
        self.total = self.peak = 0
        self.phases: list[Counter[str]] = []
        """Allocated bytes by kind at the peak of each phase that has ended."""
        self.most_others: Counter[str] = Counter()
        """Allocated bytes by kind when those of other kinds than gradients were most."""
        self._kinds: dict[int, list[Any]] = {}
        self._others = 0
        self._naming = WORKING
        self._guess = self._recomputing = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on fake tensors and counts the tensors it returns."""
        kwargs = kwargs or {}
        if func.namespace == "prim":  # queries such as a tensor's device, two of three operations
            return args[0].device if func is _DEVICE and isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        args = with_positions(func, args, self.fake)
        result, found = dynamic(func, args, kwargs, self.fake, self._guess)
        if not found:
            result = func(*args, **kwargs)
            follow(func, args, kwargs, result)
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            flops = count(*args, **kwargs, out_val=result)
            self.flops += flops
            self.recomputed += flops * self._recomputing
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self._enter(tensor, args)
        return result

    def _enter(self, tensor: Tensor, args: Any) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if (known := self._kinds.get(key)) is not None:
            if known[1] != size:  # resized
                self._add(known[0], size - known[1])
                known[1] = size
            return
        kind = self._naming
        if kind == WORKING and self._is_copy_of_weight(tensor, args):
            kind = "weight_copies"
        self._kinds[key] = [kind, size, weakref.ref(storage, lambda _: self._leave(key))]
        self._add(kind, size)

    def _is_copy_of_weight(self, tensor: Tensor, args: Any) -> bool:
        """Returns whether a tensor is a cast copy of a parameter, as created by autocast."""
        source = args[0] if args and isinstance(args[0], Tensor) else None
        if source is None or source.dtype == tensor.dtype or source.numel() != tensor.numel():
            return False
        return self.kind(source) == "parameters"

    def _add(self, kind: str, size: int) -> None:
        self.alive[kind] += size
        self.total += size
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, self.alive.copy()
        if self.total - self.alive["gradients"] > self._others:
            self._others, self.most_others = self.total - self.alive["gradients"], self.alive.copy()

    def _leave(self, key: int) -> None:
        kind, size, _ = self._kinds.pop(key)
        self.alive[kind] -= size
        self.total -= size

    def kind(self, tensor: Tensor) -> str | None:
        """Returns the kind of a tensor's storage, or None if the storage is not counted."""
        known = self._kinds.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def name(self, tensors: Iterable[Tensor], kind: str) -> int:
        """Assigns a kind to the storages of `tensors`, and returns their bytes."""
        seen = {}
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if (known := self._kinds.get(key)) is None:
                continue
            self.alive[known[0]] -= known[1]
            self.alive[kind] += known[1]
            known[0] = kind
            seen[key] = known[1]
        return sum(seen.values())

    def register(self, tensor: Tensor, kind: str) -> None:
        """Counts a tensor that no operation under this mode returned."""
        with self.naming(kind):
            self._enter(tensor, ())

    def name_rest(self, kind: str) -> None:
        """Assigns a kind to all memory that has none."""
        for known in self._kinds.values():
            if known[0] == WORKING:
                known[0] = kind
        self.alive[kind] += self.alive.pop(WORKING, 0)

    @contextmanager
    def naming(self, kind: str, guess: bool = False) -> Iterator[None]:
        """Assigns a kind to all memory allocated inside; `guess` as in `toolkit.footprint.ledger.dynamic`."""
        with replaced(self, "_naming", kind), replaced(self, "_guess", guess):
            yield

    def recomputing(self) -> AbstractContextManager[None]:
        """Counts the operations inside as recomputed."""
        return replaced(self, "_recomputing", True)

    def end_phase(self) -> None:
        """Keeps the peak of a phase, and starts the next one."""
        self.phases.append(self.at_peak)
        self.peak, self.at_peak = self.total, self.alive.copy()

    def reset_peak(self) -> None:
        """Resets the peaks to the memory that is allocated now."""
        self.peak, self.at_peak = self.total, self.alive.copy()
        self._others, self.most_others = self.total - self.alive["gradients"], self.alive.copy()


@contextmanager
def without_memory() -> Iterator[Ledger]:
    """Runs the code inside on fake tensors and counts its memory; restores the global random state afterwards."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices), fake, Ledger(fake) as ledger:
            yield ledger
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def movable_fakes() -> Iterator[None]:
    """Lets libraries move and copy modules of fake tensors, which fails in torch.

    To move a fake tensor, torch copies its mode too. Here `Module.to` returns the module unchanged, since it is already
    on its device, and copies are new tensors of the same mode.
    """

    def copy(self: FakeTensor, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            made = self.detach().clone()
            memo[id(self)] = nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made
        found: Tensor = memo[id(self)]
        return found

    stay = replaced(nn.Module, "to", lambda self, *arguments, **named: self)
    with stay, replaced(FakeTensor, "__deepcopy__", copy):
        yield

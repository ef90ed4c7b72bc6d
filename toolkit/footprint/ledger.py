"""Counts the memory and floating-point operations of a computation by running it on fake tensors."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from toolkit.footprint.values import dynamic, follow, with_positions

WORKING = "working"
"""Kind of memory that has no other kind."""


class Ledger(TorchDispatchMode):
    """Counts allocated bytes by kind, their peak, and floating-point operations.

    A storage counts from its creation until its last reference is gone, as with an ideal allocator. Temporary memory
    inside kernels is not counted.

    `torch.distributed._tools.mem_tracker.MemTracker` reports the same weights and optimizer state, and peaks within
    2 % for BERT, GPT-2, T5 and LLaMA. But it fails on models that read values (wav2vec2 reads its mask), does not
    separate logits and copies of weights from other memory, and does not count operations.

    Args:
        fake: the mode of the fake tensors; entered before this one.
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
        self._kinds: dict[int, list[Any]] = {}
        self._naming = WORKING
        self._guess = self._recomputing = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on fake tensors and counts the tensors it returns."""
        kwargs = kwargs or {}
        if func.namespace == "prim":  # queries such as a tensor's device
            return func(*args, **kwargs)
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
        """Assigns a kind to all memory allocated inside; `guess` as in `toolkit.footprint.values.dynamic`."""
        before = self._naming, self._guess
        self._naming, self._guess = kind, guess
        try:
            yield
        finally:
            self._naming, self._guess = before

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Counts the operations inside as recomputed."""
        self._recomputing = True
        try:
            yield
        finally:
            self._recomputing = False

    def reset_peak(self) -> None:
        """Resets the peak to the memory that is allocated now."""
        self.peak, self.at_peak = self.total, self.alive.copy()


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

    torch swaps a fake tensor for a new one to move it, and copies its mode along with it. Inside this context
    `Module.to` returns the module unchanged, since it is already on its device, and copies are new tensors of the same
    mode.
    """

    def copy(self: FakeTensor, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            made = self.detach().clone()
            memo[id(self)] = nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made
        found: Tensor = memo[id(self)]
        return found

    move = nn.Module.to
    nn.Module.to = lambda self, *arguments, **named: self  # type: ignore[method-assign]
    FakeTensor.__deepcopy__ = copy  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.to = move  # type: ignore[method-assign]
        del FakeTensor.__deepcopy__

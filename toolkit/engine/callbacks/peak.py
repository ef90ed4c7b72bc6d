"""Counts the bytes of the tensors of every process in a step (`tracking.count_memory`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toolkit.api.training import Callback, Training
from toolkit.base.shards import local
from toolkit.distributed.collectives import objects_of_all
from toolkit.optim.state import unwrapped

LEAST = 2**16
"""New tensors of at least so many bytes are counted at once, smaller ones after some operations."""
OFTEN = 25


class Ledger(TorchDispatchMode):
    """Adds up the memory of all tensors that operations read or make while it is active, each once.

    FSDP2 frees and allocates the memory of tensors that exist, so that their sizes are read again each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._operations = 0
        self._known: dict[int, StorageWeakRef] = {}

    def see(self, value: Any) -> int:
        """Counts a tensor from now on; returns its bytes if its memory is new."""
        if not isinstance(value, Tensor) or value.is_meta:
            return 0
        storage = local(value).untyped_storage()
        reference = StorageWeakRef(storage)
        if (known := self._known.get(reference.cdata)) is not None and not known.expired():
            return 0
        self._known[reference.cdata] = reference
        return storage.nbytes()

    def count(self) -> None:
        """Raises `peak` to what is held now, if that is more."""
        self._known = {place: each for place, each in self._known.items() if not each.expired()}
        held = (torch.UntypedStorage._new_with_weak_ptr(place) for place in self._known)
        self.peak = max(self.peak, sum(storage.nbytes() for storage in held if storage is not None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation."""
        for each in tree_leaves((args, kwargs)):
            self.see(each)
        result = func(*args, **(kwargs or {}))
        largest = max((self.see(each) for each in tree_leaves(result)), default=0)
        self._operations += 1
        if largest >= LEAST or self._operations % OFTEN == 0:
            self.count()
        return result


class CountedPeak(Callback):
    """Counts in the second step of a session, until its update; on a GPU, PyTorch's allocator counts."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._ledger: Ledger | None = None
        self._peak = 0

    def after_step(self, record: Mapping[str, float]) -> None:
        """Begins to count."""
        device = self.training.run.accelerator.device
        self._end()  # where the second step had no update
        if self._peak or self.training.over:
            return
        if device.type != "cpu":
            self._peak = torch.accelerator.max_memory_allocated(device)
            return
        self._ledger = Ledger()
        states = unwrapped(self.training.optimizer).state.values()
        for value in (*self.training.model.state_dict().values(), *tree_leaves([*states])):
            self._ledger.see(value)
        self._ledger.__enter__()

    def before_update(self) -> None:
        """Ends it."""
        self._end()

    def _end(self) -> None:
        if self._ledger is not None:
            self._ledger.__exit__(None, None, None)
            self._peak, self._ledger = self._ledger.peak, None

    def final_metrics(self) -> dict[str, Any]:
        """Returns the peaks, by process; 0 without a second step."""
        self._end()
        return {"counted_peak_bytes": objects_of_all(self._peak)}

"""Copies what a checkpoint holds, so that it can be written while training changes the original."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from toolkit.base.errors import RunError
from toolkit.base.shards import Box
from toolkit.checkpoint.planning import Plan

Key = tuple[str, str, Box]
"""Name of the group, name of the tensor, and part of it."""


class Copy:
    """Copies that are under way.

    Args:
        pairs: tensors in CPU memory and their copies, to be filled by `run`.
        fetched: recorded once what was on a GPU is copied; None if nothing was.
    """

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], fetched: torch.cuda.Event | None) -> None:
        self._pairs, self._fetched = pairs, fetched
        self._done = threading.Event()

    def run(self) -> None:
        """Fills the copies, and returns when all are complete. Call it in the thread that writes them."""
        try:
            with torch.no_grad():
                for source, target in self._pairs:
                    target.copy_(source)
        finally:
            self._pairs = ()
            self._done.set()
        if self._fetched is not None:
            self._fetched.synchronize()

    def wait(self) -> None:
        """Returns when the originals in CPU memory may change; later work of the GPU waits for those in its memory."""
        self._done.wait()
        if self._fetched is not None:
            torch.cuda.current_stream().wait_event(self._fetched)


class Snapshot:
    """Copies in CPU memory, whose memory is used again for the next ones."""

    def __init__(self) -> None:
        self._kept: dict[Key, Tensor] = {}
        self._stream: torch.cuda.Stream | None = None

    @property
    def size(self) -> int:
        """Memory of the copies, in bytes."""
        return sum(copy.nbytes for copy in self._kept.values())

    def begin(self, plans: Sequence[Plan]) -> tuple[list[Plan], Copy]:
        """Begins to copy the values of plans; the copies of the snapshot before must not be needed any more.

        Values on a GPU are copied by a stream beside the training's, values in CPU memory by `Copy.run`; those that may
        change before the next update are copied here.

        Args:
            plans: this process's values.

        Returns:
            Plans with the copies, and what fills them.

        Raises:
            RunError: if there is no memory for the copies.
        """
        kept: dict[Key, Tensor] = {}
        pairs: list[tuple[Tensor, Tensor]] = []
        on_gpu: list[tuple[Tensor, Tensor]] = []
        copied = []
        for plan in plans:
            values = {}
            for (name, box), value in plan.values.items():
                key = plan.name, name, box
                values[name, box] = kept[key] = target = self._memory(key, value)
                if name in plan.steady and value.is_cuda:
                    on_gpu.append((value, target))
                elif name in plan.steady and value.device == target.device:
                    pairs.append((value, target))
                else:
                    target.copy_(value)
            copied.append(replace(plan, values=values))
        self._kept = kept
        return copied, Copy(pairs, self._fetch(on_gpu))

    def _memory(self, key: Key, value: Tensor) -> Tensor:
        """Returns memory for a copy, from the last snapshot if possible."""
        kept = self._kept.get(key)
        if kept is not None and (kept.shape, kept.dtype) == (value.shape, value.dtype):
            return kept
        try:
            return torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        except (RuntimeError, MemoryError) as error:
            raise RunError(
                f"there is no memory for the copy of the {key[0]} that is written while training goes on "
                f"({str(error).splitlines()[0]}); set checkpoint.async_save to false, and resume with "
                "checkpoint.resume=auto"
            ) from error

    def _fetch(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> torch.cuda.Event | None:
        if not pairs:
            return None
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)
        return self._stream.record_event()

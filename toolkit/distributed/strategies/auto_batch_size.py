"""Splits micro-batches on all processes after an out-of-memory error; the window stays the same.

Which rows a step has depends on the size of its window alone, and the gradient is a sum over its items, so a
micro-batch may be trained in parts. Once a pass has run out of memory on any process, all of them zero their
gradients and begin the window again with parts of the next smaller divisor of the batch size, or of half the tokens.

No process may wait in an exchange of gradients that another, out of memory, never reaches. So gradients are exchanged
once a window is complete on every process, not during the backward pass.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from toolkit.api.batch import Batch
from toolkit.api.mesh import Mesh
from toolkit.base.console import say
from toolkit.base.errors import RunError
from toolkit.config.sections import Config
from toolkit.distributed.collectives import all_sum
from toolkit.distributed.exchange import Wire, average_gradients
from toolkit.distributed.strategies.replicas import Replicas
from toolkit.distributed.window import accumulate, seed_all


class AutoBatchSize(Replicas):
    """Synchronous training that computes a window again in smaller parts after an out-of-memory error."""

    name = "auto_batch_size"

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        super().__init__(accelerator, mesh, cfg)
        self.batch_size = cfg.train.micro_batch
        self.has_budget = cfg.train.max_tokens_per_batch is not None
        self.size = cfg.train.max_tokens_per_batch or self.batch_size  # of a part, in tokens or rows
        self.cannot_split = False
        self.wire = Wire()

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes and exchanges the gradient of a window; returns this rank's summed loss, a scalar.

        Raises RunError if memory does not suffice for a single row.
        """
        while True:
            loss_sum, error = self._try(window, scale)
            failures, hopeless = all_sum(self.accelerator, float(loss_sum is None), float(self.cannot_split))
            if not failures and loss_sum is not None:
                break
            self._use_smaller_parts(error, hopeless > 0)
        if self.mesh.data_size > 1:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            average_gradients(self.wire, trained, 1 / self.mesh.data_size)
            self.wire.copy_main([buffer for buffer in self.model.buffers() if buffer.is_floating_point()])
        return loss_sum

    def _try(self, window: Sequence[Batch], scale: float) -> tuple[Tensor | None, str | None]:
        """Computes the gradient in parts; returns the loss, or None and what the device said if memory ran out."""
        self.cannot_split = False
        parts: list[Batch] = []
        try:
            parts = [part for batch in window for part in self.replica.split(batch, self.size)]
            return accumulate(self, self.model, parts, scale), None
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            single = bool(parts) and all(len(part["row_ids"]) == 1 for part in parts)
            self.cannot_split = single or self.size == 1
            return None, str(error).strip().split("\n")[0]

    def _use_smaller_parts(self, error: str | None, hopeless: bool) -> None:
        """Begins the step again with smaller parts on all ranks; RunError if one row does not fit (`hopeless`)."""
        step, where = self.replica.state.step, error or "on another process"
        if hopeless:
            raise RunError(
                f"step {step + 1}: memory does not suffice for a single row ({where}).\n"
                "  Shorter rows, train.activation_checkpointing=full, train.mixed_precision=bf16 or an optimizer with "
                "less state need less."
            )
        before = self.size
        if self.has_budget:
            self.size = before // 2
            change = f"train.max_tokens_per_batch {before}; it is {self.size}"
        else:
            self.size = _divisor(self.batch_size, before - 1)
            parts = f"{self.batch_size // self.size} of {self.size}"
            change = f"{before} rows; splitting each micro-batch of {self.batch_size} into {parts}"
        say(f"step {step + 1}: out of memory with {change} from now on ({where})")
        self.model.zero_grad()
        gc.collect()  # what the failed pass has left
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        seed_all(self.cfg.seed, step, self.mesh.data_rank)

    @property
    def _unit(self) -> str:
        return "tokens" if self.has_budget else "rows"

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent; nothing for a single process."""
        return self.wire.exchanged() if self.mesh.data_size > 1 else {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the size of a part, in rows or tokens, and what was sent."""
        return {}, {self._unit: self.size, "bytes_sent": self.wire.bytes_sent, "collectives": self.wire.collectives}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restores the size of the parts and what was sent; the batch size or the budget may have changed."""
        size = min(values.get(self._unit, self.size), self.size)
        self.size = size if self.has_budget else _divisor(self.batch_size, size)
        self.wire.bytes_sent, self.wire.collectives = values.get("bytes_sent", 0), values.get("collectives", 0)


def _divisor(number: int, most: int) -> int:
    """Returns the largest divisor of a number that is at most `most`."""
    return max(size for size in range(1, most + 1) if number % size == 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on any device."""
    from accelerate.utils.memory import should_reduce_batch_size

    known = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, known) or (isinstance(error, Exception) and should_reduce_batch_size(error))

"""Smaller passes when memory does not suffice, agreed by all processes; what makes a step stays the same.

Which rows a step has depends on the size of its window alone, and the gradient is a sum over its items, so a
micro-batch may be trained in parts. Once a pass has run out of memory on any process, all of them zero their
gradients and begin the window again with parts of the next smaller divisor of the batch size.

No process may wait in an exchange of gradients that another, out of memory, never reaches. So gradients are not
exchanged while they are computed, as usually, but once a window is complete, after all have said that it is.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import DistributedType

from toolkit.api.random import RowRandom
from toolkit.api.task import Batch
from toolkit.base.console import say
from toolkit.base.errors import ConfigError, RunError
from toolkit.data.batches import collate
from toolkit.distributed.collectives import all_sum, sum_dtype
from toolkit.distributed.random import seed_all
from toolkit.engine.callbacks.extensions import Extension
from toolkit.engine.session import Session
from toolkit.engine.step import micro_batch

BUCKET_BYTES = 25 * 2**20
"""Gradients exchanged at once, as many as `DistributedDataParallel` takes."""


class AutoBatchSize(Extension):
    """Takes the place of `Session.add_gradient`."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        kind = session.run.accelerator.distributed_type
        if kind not in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
            raise ConfigError([
                f"train.auto_batch_size: gradients are exchanged while they are computed under {kind.value}, so a "
                "process that runs out of memory would leave the others waiting; set train.per_device_train_batch_size"
            ])  # fmt: skip
        self.rows = session.run.cfg.train.per_device_train_batch_size
        device = session.run.accelerator.device
        self.loss = torch.zeros((), dtype=sum_dtype(device), device=device)
        self.done: list[Batch] = []
        session.add_gradient = self.add

    def add(self, batch: Batch, scale: float) -> torch.Tensor:
        """Adds a micro-batch's part of the gradient; returns by how much the window's summed loss has grown.

        Raises:
            RunError: if memory does not suffice for a single row.
        """
        accelerator, before = self.session.run.accelerator, self.loss.clone()
        self.done.append(batch)
        waiting = [batch]
        while True:
            error = self._try(waiting, scale)
            (failures,) = all_sum(accelerator, float(error is not None))
            if not failures:
                break
            self._begin_again(error)
            waiting = self.done
        grown = self.loss - before
        if len(self.done) == len(self.session.window):
            exchange(self.session)
            self.done = []
            self.loss.zero_()
        return grown

    def _try(self, batches: list[Batch], scale: float) -> str | None:
        """Runs micro-batches in parts; returns what the device said if it ran out of memory."""
        run = self.session.run
        try:
            for batch in batches:
                for part in self._parts(batch):
                    # The bare model: the wrapper would exchange buffers, and gradients in the last pass.
                    self.loss += micro_batch(run.accelerator, run.task, self.session.bare_model, part, scale)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return str(error).strip().split("\n")[0]
        return None

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """Collates the rows of a micro-batch anew, so many at a time; padding is that of the part."""
        run, ids = self.session.run, batch["row_ids"].tolist()
        if len(ids) <= self.rows:
            yield batch
            return
        random = RowRandom(run.cfg.seed, self.session.state.step // self.session.plan.steps_per_epoch)
        for start in range(0, len(ids), self.rows):
            rows = run.data.train.__getitems__(ids[start : start + self.rows])
            yield collate(rows, run.task, run.processor, random)

    def _begin_again(self, error: str | None) -> None:
        """Goes back to the beginning of the step, with smaller parts; every process does, whichever has failed."""
        session, cfg = self.session, self.session.run.cfg
        step, whole = session.state.step, cfg.train.per_device_train_batch_size
        smaller = [size for size in range(1, self.rows) if whole % size == 0]
        if not smaller:
            raise RunError(
                f"step {step + 1}: memory does not suffice for a single row ({error or 'on another process'}).\n"
                "  Shorter rows, train.activation_checkpointing=full, train.mixed_precision=bf16 or an optimizer with "
                "less state need less."
            )
        say(
            f"step {step + 1}: out of memory with {self.rows} rows; from here on micro-batches of {whole} rows are "
            f"trained as {whole // smaller[-1]} of {smaller[-1]} ({error or 'on another process'})"
        )
        self.rows = smaller[-1]
        self.loss.zero_()
        session.model.zero_grad()
        gc.collect()  # what the failed pass has left
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        seed_all(cfg.seed, step, session.run.accelerator.process_index)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the rows of a part."""
        return {}, {"rows": self.rows}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Goes on with what was found."""
        self.rows = values["rows"]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on any device."""
    from accelerate.utils.memory import should_reduce_batch_size

    known = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, known) or (isinstance(error, Exception) and should_reduce_batch_size(error))


def _buckets(parameters: list[Any]) -> Iterator[list[Any]]:
    """Parameters of one type, and at most so many bytes, together."""
    bucket: list[Any] = []
    for parameter in parameters:
        size = sum(member.numel() * member.element_size() for member in bucket)
        if bucket and (size >= BUCKET_BYTES or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


@torch.no_grad()
def exchange(session: Session) -> None:
    """Averages gradients over the processes, bucket by bucket, and takes the first one's running statistics."""
    world = session.run.accelerator.num_processes
    if world == 1:
        return
    parameters = [parameter for parameter in session.bare_model.parameters() if parameter.requires_grad]
    used = torch.tensor(
        [p.grad is not None for p in parameters], dtype=torch.float32, device=session.run.accelerator.device
    )
    torch.distributed.all_reduce(used, torch.distributed.ReduceOp.MAX)
    parameters = [parameter for parameter, somewhere in zip(parameters, used.tolist(), strict=True) if somewhere]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    for bucket in _buckets(parameters):
        flat = torch.cat([parameter.grad.reshape(-1) / world for parameter in bucket])
        torch.distributed.all_reduce(flat)
        for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))
    for buffer in session.bare_model.buffers():
        if buffer.is_floating_point():
            torch.distributed.broadcast(buffer, 0)

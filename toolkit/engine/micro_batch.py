"""One forward and backward pass: what a micro-batch adds to the gradient of its window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from toolkit.task import Batch, Task


def micro_batch(accelerator: Accelerator, task: Task, model: nn.Module, batch: Batch, scale: float) -> torch.Tensor:
    """Adds one micro-batch's part of a window's gradient; returns its summed loss, a detached scalar.

    Args:
        accelerator: the run's Accelerator.
        task: gives the summed loss.
        model: the prepared model.
        batch: the micro-batch, on the CPU.
        scale: what `Session.begin_window` returned.
    """
    empty = bool((batch["row_ids"] < 0).all())
    batch = send_to_device(batch, accelerator.device, non_blocking=True)
    with kept_buffers(model) if empty else nullcontext():
        loss = task.loss_sum(model(**batch["inputs"]), batch)
        accelerator.backward(loss * scale)
    return loss.detach()


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Puts buffers back after a pass over a stand-in row, which must not enter running statistics."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    for buffer, value in before:
        if not torch.equal(buffer, value):
            buffer.copy_(value)

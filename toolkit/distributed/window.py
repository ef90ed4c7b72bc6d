"""The gradient of one window: forward and backward passes over its micro-batches, exchanged in the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from accelerate import Accelerator
from torch import nn

from toolkit.api.batch import Batch, logits_at_labels, to_device
from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.distributed.collectives import sum_dtype
from toolkit.system.phases import phase


def accumulate(
    accelerator: Accelerator,
    task: Task,
    model: nn.Module,
    window: Sequence[Batch],
    scale: float,
    beat: Callable[[], None],
    exchange: Callable[[bool], AbstractContextManager[None]] | None = None,
    backward: Callable[[torch.Tensor], object] | None = None,
) -> torch.Tensor:
    """Adds up the gradient of this rank's part of a window, from summed losses.

    Args:
        accelerator: the run's Accelerator.
        task: computes the summed loss.
        model: the prepared model.
        window: this rank's micro-batches, on the CPU.
        scale: factor of the summed losses.
        beat: called after each micro-batch.
        exchange: returns the context of a micro-batch, given whether it is the last one; by default, accelerate's
            wrapper of the model exchanges gradients in the last backward pass.
        backward: computes the gradient of a scaled loss; by default the Accelerator.

    Returns:
        This rank's summed loss, a detached scalar.
    """
    total = torch.zeros((), dtype=sum_dtype(accelerator.device), device=accelerator.device)
    for number, batch in enumerate(window, start=1):
        last = number == len(window)
        with exchange(last) if exchange else nullcontext() if last else accelerator.no_sync(model):
            total += micro_batch(accelerator, task, model, batch, scale, backward)
        beat()
    return total


def micro_batch(
    accelerator: Accelerator,
    task: Task,
    model: nn.Module,
    batch: Batch,
    scale: float,
    backward: Callable[[torch.Tensor], object] | None = None,
) -> torch.Tensor:
    """Adds one micro-batch's part of a window's gradient; returns its summed loss, a detached scalar.

    Args:
        accelerator: the run's Accelerator.
        task: gives the summed loss.
        model: the prepared model.
        batch: the micro-batch, on the CPU.
        scale: factor of the summed loss.
        backward: performs the backward pass of the scaled loss; None for the Accelerator's.
    """
    empty = bool((batch["row_ids"] < 0).all())
    with kept_buffers(model) if empty else nullcontext():
        with phase("forward"):
            batch = to_device(batch, accelerator.device)
            with logits_at_labels(batch):
                outputs = model(**batch["inputs"])
            loss = task.loss_sum(outputs, batch)
        with phase("backward"):
            (backward or accelerator.backward)(loss * scale)
    return loss.detach()


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restores buffers after a pass over a placeholder row, which must not change running statistics."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def averaging_scale(mesh: Mesh, items: float) -> float:
    """Returns the factor of summed losses for gradients averaged over data ranks: number of data ranks / items."""
    return mesh.data_size / items if items else 0.0


def clip(accelerator: Accelerator, model: nn.Module, max_norm: float) -> float:
    """Clips the gradient to a norm (0 turns clipping off) and returns its norm before clipping."""
    return float(accelerator.clip_grad_norm_(model.parameters(), max_norm or float("inf")))

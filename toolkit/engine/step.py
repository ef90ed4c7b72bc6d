"""One forward and backward pass: what a micro-batch adds to the gradient of its window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from toolkit.api.task import Batch, Task
from toolkit.distributed.collectives import sum_dtype


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


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Groups micro-batches into the windows of one step each; a whole window is fetched before it is trained on."""
    iterator = iter(batches)
    while window := list(islice(iterator, size)):
        yield window


def accumulate(
    accelerator: Accelerator,
    model: nn.Module,
    window: Sequence[Batch],
    scale: float,
    add_gradient: Callable[[Batch, float], torch.Tensor],
    beat: Callable[[], None],
) -> torch.Tensor:
    """Adds up the gradient of this rank's part of a window, from summed losses.

    Args:
        accelerator: the run's Accelerator.
        model: the prepared model; its gradients are zero.
        window: this rank's micro-batches.
        scale: what `Session.begin_window` returned.
        add_gradient: adds a micro-batch's part, given it and the scale, and returns its summed loss.
        beat: called after each micro-batch.

    Returns:
        This rank's summed loss, a detached scalar.
    """
    total = torch.zeros((), dtype=sum_dtype(accelerator.device), device=accelerator.device)
    for number, batch in enumerate(window, start=1):
        exchange = nullcontext() if number == len(window) else accelerator.no_sync(model)
        with exchange:
            total += add_gradient(batch, scale)
        beat()
    return total


def clip(accelerator: Accelerator, model: nn.Module, max_grad_norm: float) -> float:
    """Clips the gradient to a norm (0: leaves it) and returns its norm before that."""
    norm = accelerator.clip_grad_norm_(model.parameters(), max_grad_norm or float("inf"))
    return float(norm)

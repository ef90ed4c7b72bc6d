"""The gradient of one window: passes over its micro-batches, exchanged in the last one, clipped; and their seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from toolkit.api.batch import Batch, logits_at_labels, to_device
from toolkit.api.task import Task
from toolkit.base.shards import full, is_split, local
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

    Arguments as for `accumulate`; `backward` is None for the Accelerator's.
    """
    empty = bool((batch["row_ids"] < 0).all())
    with kept_buffers(model) if empty else nullcontext():
        with phase("forward"):
            batch = to_device(batch, accelerator.device)
            with logits_at_labels(batch):
                outputs = task.forward(model, batch)
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


def clip(accelerator: Accelerator, model: nn.Module, max_norm: float) -> float:
    """Clips the gradient to a norm (0 turns clipping off) and returns its norm before clipping."""
    return float(accelerator.clip_grad_norm_(model.parameters(), max_norm or float("inf")))


@torch.no_grad()
def clip_split(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Clips the gradient to a 2-norm over all processes (0: no clipping) and returns its norm before clipping.

    Parameters may be split over any mesh; gradients that are ordinary tensors must be the same on every process.
    """
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    groups: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if is_split(gradient) else None  # type: ignore[attr-defined]
        groups.setdefault(key, []).append(gradient)
    norms = [full(torch.nn.utils.get_total_norm(group)) for group in groups.values()]
    norm = math.sqrt(sum(float(norm) ** 2 for norm in norms)) if len(norms) != 1 else float(norms[0])
    scale_gradients(parameters, norm, max_norm)
    return norm


@torch.no_grad()
def clip_values(parameters: Iterable[Tensor], limit: float) -> None:
    """Limits each element of the gradient to `-limit` to `limit`, as `torch.nn.utils.clip_grad_value_`.

    That function takes no parameters that are split over processes.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            local(parameter.grad).clamp_(-limit, limit)


@torch.no_grad()
def scale_gradients(parameters: Iterable[Tensor], norm: float, max_norm: float) -> None:
    """Scales the gradient of this norm such that its norm is at most `max_norm`, unless that is 0."""
    # As torch.nn.utils.clip_grad_norm_: the norm stays below the limit despite rounding.
    if max_norm and (factor := max_norm / (norm + 1e-6)) < 1:
        for parameter in parameters:
            if parameter.grad is not None:
                local(parameter.grad).mul_(factor)


def seed_all(*key: int) -> None:
    """Seeds the global random numbers of torch, NumPy and Python from one or several integers."""
    words = np.random.SeedSequence(key).generate_state(3)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))

"""The gradient of one window: passes over its micro-batches, exchanged in the last one, clipped; and their seeds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from toolkit.api.batch import Batch, ModelOutput, logits_at_labels, to_device
from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Strategy
from toolkit.base.shards import full, is_split, local
from toolkit.distributed.collectives import data_sum, sum_dtype
from toolkit.distributed.routing import routing_of
from toolkit.system.phases import phase


def accumulate(
    strategy: Strategy,
    model: nn.Module,
    window: Sequence[Batch],
    scale: float,
    exchange: Callable[[bool], AbstractContextManager[None]] | None = None,
    backward: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """Adds up the gradient of this rank's part of a window, from summed losses.

    A loss of the whole window (`Task.window_loss`) takes two passes, as in Gao et al. 2021, arXiv 2101.06983: one
    without gradients, whose outputs are gathered and differentiated, and one that passes their gradient on to the
    parameters. Both draw the same random numbers.

    `exchange` returns the context of a micro-batch, given whether it is the last one; by default, accelerate's wrapper
    of the model exchanges gradients in the last backward pass. `backward` computes the gradient of a scaled loss; by
    default the Accelerator. The micro-batches are on the CPU.

    Returns:
        This rank's summed loss, a detached scalar; of the whole window's loss, an equal share.
    """
    accelerator, task, beat = strategy.accelerator, strategy.replica.task, strategy.replica.beat
    backward = backward or accelerator.backward
    total = torch.zeros((), dtype=sum_dtype(accelerator.device), device=accelerator.device)
    whole = None
    if routing := routing_of(model):
        routing.counts = None
    if task.has("window_loss") and (len(window) > 1 or strategy.mesh.data_size > 1):
        whole = _whole_window(strategy, model, window)
        total += whole.loss
    for place, batch in enumerate(window):
        last = place == len(window) - 1
        with exchange(last) if exchange else nullcontext() if last else accelerator.no_sync(model):
            if whole is None:
                total += micro_batch(strategy, model, batch, scale, backward)
            else:
                seed_all(whole.seeds[place])
                micro_batch(strategy, model, batch, scale, backward, whole.surrogate(place))
        beat()
    return total


@dataclass(frozen=True)
class _Whole:
    """What the first pass over a window found: this rank's share of its loss, and of its outputs, by micro-batch."""

    loss: Tensor
    gradients: Sequence[Tensor]
    seeds: Sequence[int]

    def surrogate(self, place: int) -> Callable[[ModelOutput, Batch], Tensor]:
        """Returns a function of a micro-batch's outputs that has the gradient of the window's loss."""
        return lambda outputs, batch: (outputs * self.gradients[place]).sum()


def _whole_window(strategy: Strategy, model: nn.Module, window: Sequence[Batch]) -> _Whole:
    accelerator, mesh, task = strategy.accelerator, strategy.mesh, strategy.replica.task
    seeds: list[int] = torch.randint(2**62, (len(window),)).tolist()
    outputs, labels = list[Tensor](), list[Tensor]()
    with torch.no_grad(), kept_buffers(model), phase("forward"):
        for seed, batch in zip(seeds, window, strict=True):
            seed_all(seed)
            batch = to_device(batch, accelerator.device)
            outputs.append(task.forward(model, batch))
            labels.append(batch["labels"])
            strategy.replica.beat()
    sizes = [len(each) for each in outputs]
    found, begin = _of_all(accelerator, mesh, torch.cat(outputs))
    found.requires_grad_()
    with phase("forward"):
        loss = task.window_loss(found, _of_all(accelerator, mesh, torch.cat(labels))[0])
    with phase("backward"):
        (gradient,) = torch.autograd.grad(loss, found)
    own = gradient[begin : begin + sum(sizes)].split(sizes)
    return _Whole(loss.detach() / mesh.data_size, own, seeds)


def _of_all(accelerator: Accelerator, mesh: Mesh, own: Tensor) -> tuple[Tensor, int]:
    """Returns the rows `[N, ...]` of all data ranks, each once, and the place where this rank's begin."""
    if mesh.data_size == 1:
        return own, 0
    lengths = [0.0] * mesh.data_size
    lengths[mesh.data_rank] = float(len(own))
    ends = [int(end) for end in itertools.accumulate(data_sum(accelerator, mesh, *lengths), initial=0)]
    begin, end = ends[mesh.data_rank : mesh.data_rank + 2]
    found = own.new_zeros(ends[-1], *own.shape[1:])
    if mesh.counts:
        found[begin:end] = own
    with phase("exchange"):
        gathered: Tensor = accelerator.reduce(found, reduction="sum")
    return gathered, begin


def micro_batch(
    strategy: Strategy,
    model: nn.Module,
    batch: Batch,
    scale: float,
    backward: Callable[[Tensor], object],
    loss_sum: Callable[[ModelOutput, Batch], Tensor] | None = None,
) -> Tensor:
    """Adds one micro-batch's part of a window's gradient; returns its summed loss, routers' included, detached.

    Arguments as for `accumulate`; `loss_sum` is None for the task's.
    """
    task = strategy.replica.task
    empty, routing = bool((batch["row_ids"] < 0).all()), routing_of(model)
    with kept_buffers(model) if empty else nullcontext():
        with phase("forward"):
            batch = to_device(batch, strategy.accelerator.device)
            with logits_at_labels(batch), routing.recording() if routing else nullcontext():
                outputs = task.forward(model, batch)
            loss = (loss_sum or task.loss_sum)(outputs, batch)
            if routing:
                loss = loss + routing.loss_sum(batch)
        with phase("backward"):
            backward(loss * scale)
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


def clip(accelerator: Accelerator, parameters: Sequence[Tensor], max_norm: float) -> float:
    """Clips the gradient to a norm (0 turns clipping off) and returns its norm before clipping.

    As `accelerator.clip_grad_norm_`, for parameters that are ordinary tensors; a smaller gradient is not multiplied.
    """
    accelerator.unscale_gradients()
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    value = float(norm)
    if max_norm and not value + 1e-6 < max_norm:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return value


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
    # torch.manual_seed would also write down the stack, once for each kind of device that this machine lacks.
    seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    seed(int(words[0]))
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))

"""Splits the experts of a mixture over processes, and sends tokens to them and back (expert parallel).

As in GShard (Lepikhin et al. 2020, arXiv 2006.16668): an all-to-all sends each token to the processes that hold its
experts, a second one returns their results. There is no capacity: no token is dropped.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.func import functional_call

from toolkit.base.errors import ConfigError
from toolkit.base.shards import local
from toolkit.distributed.placement import Delivery


def expert_layers(model: Any, size: int) -> list[Any]:
    """Returns the modules of stacked experts. Raises ConfigError if there are none, or `size` does not divide them."""
    key, kind = f"parallel.expert: received {size}", model.config.model_type
    # Classes of transformers' `use_experts_implementation`.
    found = [module for module in model.modules() if hasattr(module, "_is_expert_parallel")]
    lengths = {len(parameter) for module in found for parameter in module.parameters()}
    if not found or lengths != {module.num_experts for module in found}:
        raise ConfigError([f"{key}, but a {kind} has no experts that are stacked in parameters; set parallel.fsdp"])
    if wrong := sorted(length for length in lengths if length % size):
        raise ConfigError([f"{key}, which does not divide the {wrong[0]} experts of a layer; set a number that does"])
    return found


def split_experts(model: Any, mesh: DeviceMesh, deliver: Delivery) -> frozenset[nn.Parameter]:
    """Splits the experts of each layer, once delivered, over the processes of a mesh; returns their parameters."""
    parameters: set[nn.Parameter] = set()
    for module in expert_layers(model, mesh.size()):
        deliver(module.modules())
        for name, complete in list(module.named_parameters()):
            own = complete.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
            split = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
            module.register_parameter(name, nn.Parameter(split, complete.requires_grad))
        parameters.update(module.parameters())
        own_experts = copy.copy(module)  # the same class, whose implementation computes this process's experts
        own_experts._parameters = dict(module._parameters)
        own_experts.num_experts = module.num_experts // mesh.size()
        module.forward = partial(_forward, own_experts, mesh.get_group())
    return frozenset(parameters)


def _forward(experts: Any, group: dist.ProcessGroup, hidden: Tensor, top_k_index: Tensor, weights: Tensor) -> Tensor:
    """Returns weighted sums `[T, H]` of what the experts `[T, K]` of tokens `[T, H]` make of them; weights `[T, K]`."""
    number = experts.num_experts
    chosen, order = top_k_index.flatten().sort(stable=True)
    counts = torch.bincount(chosen, minlength=number * group.size()).view(group.size(), number)
    coming = torch.empty_like(counts)  # by sender and own expert
    dist.all_to_all_single(coming, counts, group=group)
    sent, received = counts.sum(1).tolist(), coming.sum(1).tolist()
    rows = _Exchange.apply(hidden[order // top_k_index.shape[1]], sent, received, group)
    own = torch.arange(number, device=rows.device).repeat(group.size()).repeat_interleave(coming.flatten())
    results = _Exchange.apply(_computed(experts, rows, own), received, sent, group)
    weighted = results[order.argsort()].view(*top_k_index.shape, -1) * weights.unsqueeze(-1)
    return weighted.sum(1).to(hidden.dtype)


def _computed(experts: Any, rows: Tensor, own: Tensor) -> Tensor:
    """Returns `[R, H]`, what the experts `own` `[R]` make of rows `[R, H]`."""
    weights = {name: local(parameter) for name, parameter in experts.named_parameters()}
    if not len(rows):  # depends on all that others differentiate, so that this process joins the backward exchanges
        return rows + sum(weight[:0].sum() for weight in weights.values())
    found: Tensor = functional_call(experts, weights, (rows, own.unsqueeze(1), rows.new_ones(len(rows), 1)))
    return found


class _Exchange(torch.autograd.Function):
    """Sends rows, in order of their receivers, by an all-to-all; the backward pass returns their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        """Returns the rows that came, in order of their senders; `sent` and `received` count them by process."""
        ctx.back = received, sent, group
        found = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Returns the gradient of the rows."""
        return _Exchange.apply(gradients[0], *ctx.back), None, None, None

"""Logits that are split over processes by the vocabulary, and their cross entropy.

The cross entropy exchanges a few numbers per token: the greatest logit, the sum of exponentials, and the label's logit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional
from torch.nn.functional import embedding
from torch.utils._pytree import tree_leaves, tree_map_only

from toolkit.base.shards import is_split
from toolkit.distributed.placement import Delivery

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names}


_OF_COMPLETE = {
    *_getters("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_sparse", "_base"),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, torch.is_floating_point),
}
_OF_OWN = {*_getters("requires_grad", "grad_fn"), Tensor.register_hook}
_ELEMENTWISE = {
    *(getattr(Tensor, f"__{name}__") for name in ("add", "radd", "mul", "rmul", "truediv", "sub", "neg")),
    *(getattr(kind, name) for kind in (torch, Tensor) for name in ("add", "mul", "div", "sub", "tanh", "detach")),
    *(getattr(Tensor, name) for name in ("float", "double", "to", "contiguous")),
}
_SHAPED = {Tensor.flatten, torch.flatten, Tensor.view, Tensor.reshape, torch.reshape, Tensor.__getitem__}


class SplitLogits(Tensor):
    """Logits `[..., vocabulary]` that look complete; this process has its part of the vocabulary in `own`.

    The cross entropy, arithmetic on single logits, and changes of other dimensions keep them split. Everything else
    gathers them first, which every process of the mesh must do.
    """

    own: Tensor
    mesh: DeviceMesh

    @staticmethod
    def __new__(cls, own: Tensor, mesh: DeviceMesh, size: int) -> SplitLogits:
        """Returns a tensor of the complete shape that has only this process's logits."""
        shape = (*own.shape[:-1], size)
        made: SplitLogits = Tensor._make_wrapper_subclass(cls, shape, dtype=own.dtype, device=own.device)
        made.own, made.mesh = own, mesh
        return made

    def __init__(self, own: Tensor, mesh: DeviceMesh, size: int) -> None:
        super().__init__()

    def complete(self) -> Tensor:
        """Returns all logits, `[..., vocabulary]`; its gradient must be the same on every process."""
        stride = torch.empty(self.shape, device="meta").stride()
        placed = [Shard(self.own.dim() - 1)]
        split = DTensor.from_local(self.own, self.mesh, placed, run_check=False, shape=self.shape, stride=stride)
        return split.full_tensor()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes a function of PyTorch on split logits, or gathers them."""
        kwargs = kwargs or {}
        if function in _OF_COMPLETE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if function in _ELEMENTWISE:
            return next(value for value in args if isinstance(value, SplitLogits))._elementwise(function, args, kwargs)
        logits = args[0] if args else None
        if isinstance(logits, SplitLogits):
            if function in _OF_OWN:
                return function(logits.own, *args[1:], **kwargs)
            if function in _SHAPED and (shaped := logits._shaped(function, args[1:], kwargs)) is not None:
                return shaped
            if function is functional.cross_entropy and (loss := _cross_entropy(*args, **kwargs)) is not None:
                return loss
        args, kwargs = tree_map_only(SplitLogits, SplitLogits.complete, (args, kwargs))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuses operations that would read values without `__torch_function__`."""
        raise NotImplementedError(f"{operation} of logits that are split over processes")

    def _elementwise(self, function: Any, args: Any, kwargs: Any) -> SplitLogits:
        size, first = self.shape[-1], first_column(self.shape[-1], self.mesh)

        def own(value: Tensor) -> Tensor:
            if isinstance(value, SplitLogits):
                return value.own
            if value.dim() and value.shape[-1] == size:
                return value[..., first : first + self.own.shape[-1]]
            return value

        args, kwargs = tree_map_only(Tensor, own, (args, kwargs))
        return SplitLogits(function(*args, **kwargs), self.mesh, size)

    def _shaped(self, function: Any, args: Any, kwargs: Any) -> SplitLogits | None:
        """Returns the logits in another shape; None if that changes the dimension of the vocabulary."""
        if any(isinstance(value, Tensor | list) for value in tree_leaves((args, kwargs))):
            return None
        shape = function(torch.empty(self.shape, device="meta"), *args, **kwargs).shape
        if not shape or shape[-1] != self.shape[-1]:
            return None
        picked = self.own[args[0]] if function is Tensor.__getitem__ else self.own
        return SplitLogits(picked.reshape(*shape[:-1], self.own.shape[-1]), self.mesh, self.shape[-1])


def first_column(size: int, mesh: DeviceMesh) -> int:
    """Returns the first token of this process's part of a vocabulary of some size."""
    return min(mesh.get_local_rank() * math.ceil(size / mesh.size()), size)


def _cross_entropy(
    logits: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """Computes `torch.nn.functional.cross_entropy` with these arguments; None if it needs complete logits."""
    unusual = weight is not None or size_average is not None or reduce is not None
    if unusual or logits.dim() != 2 or isinstance(target, SplitLogits) or target.is_floating_point():
        return None
    own = logits.own.float() if logits.own.dtype.itemsize < 4 else logits.own
    counted = target != ignore_index
    first, size = first_column(logits.shape[-1], logits.mesh), logits.shape[-1]
    losses: Tensor = _Losses.apply(own, target.where(counted, first), first, size, label_smoothing, logits.mesh)
    losses = losses.where(counted, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / counted.sum() if reduction == "mean" else losses.sum()


class _Losses(torch.autograd.Function):
    """Cross entropy of each row `[N]` of logits `[N, own columns]`."""

    @staticmethod
    def forward(
        ctx: Any, own: Tensor, labels: Tensor, first: int, size: int, smoothing: float, mesh: DeviceMesh
    ) -> Tensor:
        group, columns = mesh.get_group(), labels - first
        here = (columns >= 0) & (columns < own.shape[-1])
        columns = columns.where(here, 0)[:, None]
        greatest = own.amax(-1, keepdim=True)
        dist.all_reduce(greatest, dist.ReduceOp.MAX, group)
        shifted = own - greatest
        of_label = shifted.gather(-1, columns).squeeze(-1).where(here, 0.0)
        total = shifted.sum(-1) if smoothing else torch.zeros_like(of_label)
        powers = shifted.exp_()
        sums = torch.stack([powers.sum(-1), of_label, total])
        dist.all_reduce(sums, group=group)
        powers /= sums[0][:, None]
        ctx.save_for_backward(powers, columns, here)
        ctx.smoothing, ctx.size = smoothing, size
        log_sum = sums[0].log()
        return (1 - smoothing) * (log_sum - sums[1]) + smoothing * (log_sum - sums[2] / size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        powers, columns, here = ctx.saved_tensors
        gradient = powers - ctx.smoothing / ctx.size if ctx.smoothing else powers.clone()
        gradient.scatter_add_(-1, columns, (ctx.smoothing - 1) * here[:, None].to(powers.dtype))
        return gradient * gradients[0][:, None], None, None, None, None, None


def split_vocabulary(model: PreTrainedModel, mesh: DeviceMesh, deliver: Delivery, shards: int = 1) -> None:
    """Splits the linear output head, and lookups and modules with its weights; arguments as for `split_layers`."""
    head, *tables = vocabulary_modules(model) or [None]
    if head is None or not divides([len(module.weight) for module in (head, *tables)], mesh.size(), shards):
        return
    tied = {id(parameter) for module in (head, *tables) for parameter in module.parameters()}
    holders = [module for module in model.modules() if any(id(p) in tied for p in module._parameters.values())]
    deliver(holders)
    parts: dict[int, Any] = {}
    for parameter in (each for module in (head, *tables) for each in module.parameters()):
        if id(parameter) not in parts:
            part = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
            parts[id(parameter)] = nn.Parameter(part, parameter.requires_grad)
    for table in tables:
        table.forward = partial(_look_up, table, mesh)
    for module in holders:  # tied weights and biases stay tied
        for name, parameter in module._parameters.items():
            if id(parameter) in parts:
                module._parameters[name] = parts[id(parameter)]
    # A loss in chunks (`toolkit.models.chunked`) has its own forward pass, which calls this one.
    setattr(head, "split_forward" if "forward" in vars(head) else "forward", partial(_split_logits, head, mesh))


def vocabulary_modules(model: PreTrainedModel) -> list[Any]:
    """Returns the output head and the embeddings that can be split by the vocabulary; nothing if they cannot."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return []
    weights = {id(head.weight), id(getattr(model.get_input_embeddings(), "weight", None))}
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and id(module.weight) in weights]
    scaled = "ScaledWordEmbedding"  # a lookup and a factor
    lookups = all(type(table) is nn.Embedding or type(table).__name__.endswith(scaled) for table in tables)
    return [head, *tables] if lookups else []


def divides(rows: Iterable[int], size: int, shards: int) -> bool:
    """Returns whether each of `size` processes gets rows and, with further shards, equally many."""
    return all(count >= size**2 and (shards == 1 or count % (size * shards) == 0) for count in rows)


def _look_up(table: Any, mesh: DeviceMesh, ids: Tensor) -> Tensor:
    """Returns complete embeddings `[..., width]` of token ids `[...]`; each process looks up its part."""
    if not is_split(table.weight):  # a stand-in on another stage of a pipeline
        return type(table).forward(table, ids)
    own = table.weight.to_local()
    first = first_column(table.weight.shape[0], mesh)
    places = ids - first
    elsewhere = (places < 0) | (places >= len(own))
    padding = -1 if table.padding_idx is None else table.padding_idx - first
    rows = embedding(places.masked_fill(elsewhere, 0), own, padding if 0 <= padding < len(own) else None)
    rows = rows.masked_fill(elsewhere[..., None], 0)
    found = DTensor.from_local(rows, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()])
    scale = getattr(table, "embed_scale", 1.0)
    return found.to_local() * (scale.to(rows.dtype) if isinstance(scale, Tensor) else scale)


def _split_logits(head: Any, mesh: DeviceMesh, hidden: Tensor) -> Tensor:
    """Returns the logits for the loss, or complete ones where no gradient is computed."""
    # Each process computes the part of the gradient that comes through its logits.
    complete = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
    bias = None if head.bias is None else head.bias.to_local()
    logits = SplitLogits(functional.linear(complete, head.weight.to_local(), bias), mesh, head.weight.shape[0])
    return logits if torch.is_grad_enabled() else logits.complete()

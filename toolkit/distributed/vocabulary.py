"""Splits the output head and the embeddings of a language model by the vocabulary (Shoeybi et al. 2019).

Each process holds some of the rows of the matrices and computes the logits of these tokens, which stay split for the
loss (`toolkit.distributed.tensor.vocabulary`). In evaluation and generation they are gathered.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.functional import embedding

from toolkit.base.shards import is_split
from toolkit.distributed.placement import Delivery
from toolkit.distributed.tensor.vocabulary import SplitLogits, first_column

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def split_vocabulary(model: PreTrainedModel, mesh: DeviceMesh, deliver: Delivery, shards: int = 1) -> None:
    """Splits the output head and the input embeddings of a model, and embeddings that share their weights, in place.

    Models without a linear output head over the vocabulary, and those whose embeddings compute something else than a
    lookup and a factor, are left as they are.

    Args:
        model: a model whose weights the main process has.
        mesh: the processes, in one dimension.
        deliver: provides weights before they are split.
        shards: number of further processes over which each part is sharded (FSDP).
    """
    head, *tables = vocabulary_modules(model) or [None]
    if head is None or not divides([len(module.weight) for module in (head, *tables)], mesh.size(), shards):
        return
    tied = {id(parameter) for module in (head, *tables) for parameter in module.parameters()}
    holders = [module for module in model.modules() if any(id(p) in tied for p in module._parameters.values())]
    deliver(holders)
    complete = dict(head.named_parameters())
    parallelize_module(head, mesh, ColwiseParallel())
    parts: dict[int, Any] = {
        id(old): head.get_parameter(name).requires_grad_(old.requires_grad) for name, old in complete.items()
    }
    for table in tables:
        weight = table.weight
        if id(weight) not in parts:
            part = distribute_tensor(weight.detach(), mesh, [Shard(0)], src_data_rank=None)
            parts[id(weight)] = nn.Parameter(part, weight.requires_grad)
        table.forward = partial(_look_up, table, mesh)
    for module in holders:  # tied weights and biases stay tied
        for name, parameter in module._parameters.items():
            if id(parameter) in parts:
                module._parameters[name] = parts[id(parameter)]
    head.register_forward_hook(partial(_split_logits, mesh))


def vocabulary_modules(model: PreTrainedModel) -> list[Any]:
    """Returns the output head and the embeddings that can be split by the vocabulary; nothing if they cannot."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return []
    weights = {id(head.weight), id(getattr(model.get_input_embeddings(), "weight", None))}
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and id(module.weight) in weights]
    return [head, *tables] if all(_is_lookup(table) for table in tables) else []


def divides(rows: Iterable[int], size: int, shards: int) -> bool:
    """Returns whether each of `size` processes gets rows, and, if they are sharded again, equally many."""
    return all(count >= size**2 and (shards == 1 or count % (size * shards) == 0) for count in rows)


def _is_lookup(module: nn.Module) -> bool:
    return type(module) is nn.Embedding or type(module).__name__.endswith("ScaledWordEmbedding")


def _look_up(table: Any, mesh: DeviceMesh, ids: Tensor) -> Tensor:
    """Returns complete embeddings `[..., width]` of token ids `[...]`; each process looks up what it has."""
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


def _split_logits(mesh: DeviceMesh, head: Any, inputs: Any, own: Tensor) -> Tensor:
    """Returns the logits for the loss, or complete ones where no gradient is computed."""
    logits = SplitLogits(own, mesh, head.weight.shape[0])
    return logits if torch.is_grad_enabled() else logits.complete()

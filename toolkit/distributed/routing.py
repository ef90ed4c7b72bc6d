"""What the routers of a mixture of experts choose: the loss that balances their load, and the load.

The loss is that of Switch Transformers (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6) over all layers, as in
transformers, but of each row, weighted by its labels, like DeepSeek-V3's loss of a sequence (DeepSeek-AI 2024, arXiv
2412.19437, equations 17 to 20). As no sum over rows, that of a micro-batch would depend on how a window is split.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from toolkit.api.batch import Batch, given
from toolkit.api.mesh import Mesh
from toolkit.distributed.collectives import data_sum

if TYPE_CHECKING:
    from accelerate import Accelerator

BALANCED = ("ernie4_5_moe", "granitemoe", "granitemoeshared", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
"""Architectures whose loss of a row a test compares with transformers'."""
ON, COEFFICIENT = "output_router_logits", "router_aux_loss_coef"
"""Fields of a model's configuration: whether the loss counts, and its factor."""


class Routing:
    """Records routers, by layer, which return logits `[T, E]`, weights and chosen experts `[T, K]` of T tokens."""

    def __init__(self, routers: list[nn.Module], coefficient: float) -> None:
        self.routers, self.coefficient = routers, coefficient  # factor of the loss; 0 for none
        self.counts: Tensor | None = None  # `[layers, E]` tokens of the window so far by expert; None at its begin
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records a forward pass; not its repetition by activation checkpointing."""
        self._found = []
        handles = [each.register_forward_hook(lambda *call: self._found.append(call[2])) for each in self.routers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def loss_sum(self, batch: Batch) -> Tensor | float:
        """Returns the loss of the recorded pass over a batch, summed over its rows, and counts its tokens."""
        logits, chosen = (torch.stack([each[part] for each in self._found]) for part in (0, 2))
        self._found = []
        mask = batch["inputs"].get("attention_mask")
        if mask is None or mask.numel() != logits.shape[1]:  # the model computed without padding
            mask = logits.new_ones(logits.shape[1])
        real = (mask.flatten() * (batch["row_ids"] >= 0).any()).long().unsqueeze(1).expand_as(chosen)
        counts = real.new_zeros(len(chosen), logits.shape[2]).scatter_add_(1, chosen.flatten(1), real.flatten(1))
        self.counts = counts if self.counts is None else self.counts + counts
        if not self.coefficient:
            return 0.0
        labels = given(batch["labels"]).reshape(len(batch["labels"]), -1).sum(1)
        logits = logits.view(len(logits), len(labels), -1, logits.shape[2])
        return self.coefficient * (labels * row_losses(logits, mask.view(len(labels), -1), chosen.shape[2])).sum()


def row_losses(logits: Tensor, mask: Tensor, top_k: int) -> Tensor:
    """Returns `[rows]`, E times the sum over experts of the share of tokens that chose one, times its mean probability.

    Logits are `[layers, rows, T, E]`; tokens with a `mask` `[rows, T]` of 0 do not count.
    """
    shares = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    chosen = torch.zeros_like(shares).scatter_(-1, shares.topk(top_k).indices, 1.0)
    hits, sums = (torch.einsum("lrte,rt->re", each, mask.to(each.dtype)) for each in (chosen, shares))
    tokens = len(logits) * mask.sum(1, keepdim=True)
    return logits.shape[-1] * (hits / tokens * (sums / tokens)).sum(1)


_KNOWN: WeakKeyDictionary[nn.Module, Routing | None] = WeakKeyDictionary()


def routing_of(model: Any) -> Routing | None:
    """Returns what records the routers of a model, wrapped or not; None without routers, or for a compiled model."""
    bare: nn.Module = getattr(model, "module", model)
    if bare not in _KNOWN:
        modules, config = list(bare.modules()), getattr(bare, "config", None)
        recorders: list[Any] = [getattr(each, "_can_record_outputs", None) or {} for each in modules]
        found = [each.get("router_logits") for each in recorders]
        kinds = {each.target_class for each in found if getattr(each, "index", None) == 0}
        routers = [each for each in modules if type(each) in kinds]
        stacked = any(hasattr(each, "_is_expert_parallel") for each in modules)
        is_used = routers and stacked and getattr(bare, "_compiled_call_impl", None) is None
        coefficient = float(getattr(config, COEFFICIENT, 0.0)) if getattr(config, ON, False) else 0.0
        _KNOWN[bare] = Routing(routers, coefficient) if is_used else None
    return _KNOWN[bare]


def load_metrics(accelerator: Accelerator, mesh: Mesh, model: nn.Module) -> dict[str, float]:
    """Returns the load of experts in the last window, in multiples of a layer's mean; every process must call it."""
    if (routing := routing_of(model)) is None or routing.counts is None:
        return {}
    sums = data_sum(accelerator, mesh, *routing.counts.flatten().double().tolist())
    load = torch.tensor(sums, dtype=torch.float64).view_as(routing.counts)
    load /= load.mean(1, keepdim=True).clamp(min=1.0 / load.shape[1])
    most = {f"router/layer_{layer}": value for layer, value in enumerate(load.amax(1).tolist())}
    return {"router/max_load": max(most.values()), "router/min_load": float(load.min()), **most}

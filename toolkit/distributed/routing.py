"""What the routers of a mixture of experts choose: the loss that balances their load, and the load.

The loss is that of Switch Transformers (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6), as transformers
computes it over all layers, but of each row by itself, weighted by the labels of the row, as DeepSeek-V3's loss of a
sequence (DeepSeek-AI 2024, arXiv 2412.19437, equations 17 to 20). A loss of a micro-batch would depend on how a window
is split, since it is not a sum over rows.
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

BALANCED = (
    "ernie4_5_moe", "granitemoe", "granitemoeshared", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe",
)  # fmt: skip
"""Architectures whose loss of a row a test compares with transformers'."""
ON, COEFFICIENT = "output_router_logits", "router_aux_loss_coef"
"""Fields of a model's configuration: whether the loss counts, and its factor."""


class Routing:
    """What a model's routers, which have recorded something since `begin`, chose in a window.

    Args:
        routers: the routers by layer; each returns logits `[T, E]` for T tokens, weights, and chosen experts `[T, K]`.
        coefficient: factor of the loss; None for no loss.
    """

    def __init__(self, routers: list[nn.Module], coefficient: float | None) -> None:
        self.routers, self.coefficient = routers, coefficient
        self.counts: list[Tensor] = []
        self._found: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """Begins a window."""
        self.counts = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records a forward pass; not its repetition by activation checkpointing."""
        self._found = []
        handles = [router.register_forward_hook(self._note) for router in self.routers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, router: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor, Tensor]) -> None:
        logits, _, chosen = outputs
        self._found.append((logits, chosen))

    def loss_sum(self, batch: Batch) -> Tensor | float:
        """Returns the loss of the recorded pass over a batch, summed over its rows, and counts its tokens by expert."""
        found, self._found = self._found, []
        logits = found[0][0]
        mask = batch["inputs"].get("attention_mask")
        if mask is None or mask.numel() != len(logits):  # the model computed without padding
            mask = logits.new_ones(len(logits))
        real = (batch["row_ids"] >= 0).any().to(mask.device)
        counts = [_counted(chosen, mask.flatten() * real, logits.shape[1]) for logits, chosen in found]
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)] if self.counts else counts
        if self.coefficient is None:
            return 0.0
        weights = given(batch["labels"]).reshape(len(batch["labels"]), -1).sum(1)
        top_k = found[0][1].shape[1]
        return self.coefficient * (weights * row_losses([each for each, _ in found], mask, len(weights), top_k)).sum()


def _counted(chosen: Tensor, mask: Tensor, number: int) -> Tensor:
    """Returns `[number]`, how many of the tokens with a `mask` of 1 chose each expert; `chosen` is `[T, K]`."""
    ones = mask.long().repeat_interleave(chosen.shape[1])
    return ones.new_zeros(number).scatter_add_(0, chosen.flatten(), ones)


def row_losses(logits: list[Tensor], mask: Tensor, rows: int, top_k: int) -> Tensor:
    """Returns `[rows]`, the load-balancing loss of each row, from each layer's logits `[T, E]` and a mask of T tokens.

    It is E times the sum over experts of the share of tokens that chose one, times its mean probability.
    """
    mask, number = mask.reshape(rows, -1, 1), logits[0].shape[1]
    hits, probabilities = torch.zeros((), device=mask.device), torch.zeros((), device=mask.device)
    for layer in logits:
        wide = layer if layer.dtype == torch.float64 else layer.float()
        shares = wide.softmax(-1).view(rows, -1, number)
        chosen = torch.zeros_like(shares).scatter_(-1, shares.topk(top_k).indices, 1.0)
        hits = hits + (chosen * mask).sum(1)
        probabilities = probabilities + (shares * mask).sum(1)
    tokens = mask.sum(1) * len(logits)
    return number * (hits / tokens * (probabilities / tokens)).sum(1)


_KNOWN: WeakKeyDictionary[nn.Module, Routing | None] = WeakKeyDictionary()


def routing_of(model: Any) -> Routing | None:
    """Returns what records the routers of a model, wrapped or not; None if it has none, or is compiled."""
    bare: nn.Module = getattr(model, "module", model)
    if bare not in _KNOWN:
        config = getattr(bare, "config", None)
        is_on, kinds = getattr(config, ON, False), _kinds(bare)
        routers = [module for module in bare.modules() if type(module) in kinds]
        coefficient = float(getattr(config, COEFFICIENT)) if is_on and routers else None
        compiled = getattr(bare, "_compiled_call_impl", None) is not None  # would not call hooks
        _KNOWN[bare] = Routing(routers, coefficient) if routers and not compiled else None
    return _KNOWN[bare]


def _kinds(model: nn.Module) -> set[Any]:
    """Returns the classes that transformers records as routers with logits, if they are followed by stacked experts."""
    if not any(hasattr(module, "_is_expert_parallel") for module in model.modules()):
        return set()
    recorders = [(getattr(m, "_can_record_outputs", None) or {}).get("router_logits") for m in model.modules()]
    return {each.target_class for each in recorders if getattr(each, "index", None) == 0}


def load_metrics(accelerator: Accelerator, mesh: Mesh, model: nn.Module) -> dict[str, float]:
    """Returns each layer's greatest number of tokens per expert in the last window, as a multiple of the mean.

    Every process must call it. `router/max_load` and `router/min_load` are those of the most and the least loaded
    expert of any layer; both are 1 if the load is even.
    """
    routing = routing_of(model)
    if routing is None or not routing.counts:
        return {}
    counts = torch.stack(routing.counts)
    sums = torch.tensor(data_sum(accelerator, mesh, *counts.flatten().tolist()), dtype=torch.float64).view_as(counts)
    load = sums / sums.mean(1, keepdim=True).clamp(min=1e-9)
    layers = {f"router/layer_{place}": float(value) for place, value in enumerate(load.amax(1))}
    return {"router/max_load": float(load.max()), "router/min_load": float(load.min()), **layers}

"""Splits the positions of long inputs over processes (context parallelism).

The processes of a context group read the same rows, and each passes on 1/n of their positions. Attention gathers the
keys and values of all positions, as in Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, section 3.3.2), and does so
again in the backward pass, so that no layer keeps them. The layers themselves do not know of it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.nn.functional import pad

from toolkit.api.batch import IGNORE_INDEX, Batch
from toolkit.base.package import replaced
from toolkit.distributed.exchange import Wire, average_gradients

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MODELS = frozenset((
    "bert", "camembert", "distilbert", "electra", "gemma", "gpt2", "gpt_neox", "granite", "llama", "mistral",
    "modernbert", "olmo2", "phi", "phi3", "qwen2", "qwen3", "roberta", "smollm3", "starcoder2", "xlm-roberta",
))  # fmt: skip
"""Model types whose layers use transformers' attention and take positions; a test compares each with the whole."""
NAME = "context_sdpa"
"""Name of the attention among transformers'; a name with `sdpa` gets the checks of transformers for it."""
SCORES = 2**21
"""Most scores of a head for which there is a mask at once."""
BY_POSITION = ("input_ids", "token_type_ids", "position_ids")
"""Inputs of a model with a value for each position."""


def context_problems(config: PreTrainedConfig, size: int, attention: str | None) -> list[str]:
    """Returns why the positions of a model's inputs cannot be split over `size` processes."""
    key, instead = f"parallel.context: received {size}", "set parallel.fsdp or parallel.tensor instead"
    if config.model_type not in MODELS or getattr(config, "auto_map", None):
        known = ", ".join(sorted(MODELS))
        return [f"{key}, but splitting positions is not supported for {config.model_type}, only for {known}; {instead}"]
    if attention not in (None, "sdpa"):
        return [f"{key}, but with {attention}, keys and values are not gathered; set model.attn_implementation to sdpa"]
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {each.get("rope_type") for each in (rope, *rope.values()) if isinstance(each, Mapping)}
    if by_length := kinds & {"dynamic", "longrope"}:
        why = f"rotary positions of the type {by_length.pop()} depend on the length of a sequence, not of a part"
        return [f"{key}, but {why}; {instead}"]
    return []


def gathered(own: Tensor, mesh: DeviceMesh, dim: int) -> Tensor:
    """Returns what all processes have along a dimension; its gradient is added up, each part at its owner."""
    split = DTensor.from_local(own.contiguous(), mesh, [Shard(dim)], run_check=False)
    return split.full_tensor(grad_placements=[Partial()])


@dataclass(frozen=True)
class Part:
    """A process's part of the positions of a batch; layers get it as their mask."""

    mesh: DeviceMesh  # the processes that share the positions
    start: int  # the first own position
    length: int  # number of own positions
    arguments: Mapping[str, Any] = field(default_factory=dict)  # those of transformers' `sdpa_mask`

    def blocks(self, seed: int | None) -> Iterator[tuple[slice, int, Tensor | None]]:
        """Yields own positions that are computed together, the end of the keys that they see, and their mask.

        With a seed, random numbers come from it until the last one is done, and none is drawn from those outside.
        """
        from transformers.masking_utils import sdpa_mask

        whole, kept = self.length * self.mesh.size(), self.arguments["attention_mask"]
        rows = max(1, SCORES // (whole * self.arguments["batch_size"]))
        kind = self.mesh.device_type
        devices = [] if kind == "cpu" else [torch.accelerator.current_device_index()]
        with torch.random.fork_rng(devices, enabled=seed is not None, device_type=kind):
            if seed is not None:
                torch.manual_seed(seed)
            for begin in range(0, self.length, rows):
                end = min(begin + rows, self.length)
                keys = self.start + end if self.arguments["allow_is_causal_skip"] else whole
                own = {"q_length": end - begin, "q_offset": self.start + begin, "kv_length": keys, "kv_offset": 0}
                own |= {"attention_mask": kept[:, :keys]}
                yield slice(begin, end), keys, sdpa_mask(**{**self.arguments, **own})


_PASS: ContextVar[Part | None] = ContextVar("pass", default=None)
"""The part of the pass that makes its masks."""


def split_mask(**arguments: Any) -> Part | Tensor | None:
    """Returns a `Part` in a pass over a part of the positions, else transformers' mask; arguments as `sdpa_mask`."""
    from transformers.masking_utils import sdpa_mask

    part = _PASS.get()
    return sdpa_mask(**arguments) if part is None else replace(part, arguments=arguments)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Part | Tensor | None,
    dropout: float = 0.0,
    **further: Any,
) -> tuple[Tensor, None]:
    """Computes attention `[B, T / n, heads, size]` for transformers' layers, of own queries to the keys of all.

    Arguments are those of transformers' attention functions, with `query`, `key` and `value` `[B, heads, T / n, size]`.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    compute: Any = partial(sdpa_attention_forward, module, dropout=dropout, **further)
    if not isinstance(attention_mask, Part):
        whole: tuple[Tensor, None] = compute(query, key, value, attention_mask=attention_mask)
        return whole
    device = query.device.type
    if torch.is_autocast_enabled(device):  # the backward pass runs without it
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in (query, key, value))
    seed = int(torch.randint(2**62, ())) if dropout else None
    found: Tensor = _Attention.apply(compute, attention_mask, seed, query, key, value)
    return found, None


class _Attention(torch.autograd.Function):
    """Attention whose backward pass gathers keys and values, and computes blocks of queries, once more."""

    @staticmethod
    def forward(ctx: Any, compute: Any, part: Part, seed: int | None, *given: Tensor) -> Tensor:
        ctx.compute, ctx.part, ctx.seed = compute, part, seed
        ctx.save_for_backward(*given)
        query, keys, values = given[0], *(gathered(each, part.mesh, 2) for each in given[1:])
        return torch.cat([
            compute(query[:, :, own], keys[:, :, :end], values[:, :, :end], attention_mask=mask)[0]
            for own, end, mask in part.blocks(seed)
        ], dim=1)  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        part, (query, *others) = ctx.part, ctx.saved_tensors
        both = [gathered(each, part.mesh, 2) for each in others]
        of_query, sums = torch.empty_like(query), [torch.zeros_like(each) for each in both]
        for own, end, mask in part.blocks(ctx.seed):
            seen = (query[:, :, own], *(each[:, :, :end] for each in both))
            given = [each.detach().requires_grad_() for each in seen]
            with torch.enable_grad():
                found = ctx.compute(*given, attention_mask=mask)[0]
            of_query[:, :, own], *of_seen = torch.autograd.grad(found, given, gradients[0][:, own])
            for total, one in zip(sums, of_seen, strict=True):
                total[:, :, :end] += one
        complete = (DTensor.from_local(each, part.mesh, [Partial()], run_check=False) for each in sums)
        return None, None, None, of_query, *(each.redistribute(placements=[Shard(2)]).to_local() for each in complete)


class Context:
    """Makes a model, of one of the types in `MODELS`, compute the positions of this process inside `splitting`."""

    def __init__(self, model: PreTrainedModel, mesh: DeviceMesh) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

        self.mesh, self.rank, self.size = mesh, mesh.get_local_rank(), mesh.size()
        self.wire = Wire(mesh.get_group())
        self._splits, self._gathers, self._end = False, False, 0  # the number of positions of the current pass
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, split_mask)
        *_, base = (module for module in model.modules() if isinstance(module, PreTrainedModel))
        base.config._attn_implementation = NAME
        self._names = list(inspect.signature(base.forward).parameters)
        self._table: Any = next((m for m in base.modules() if hasattr(m, "create_position_ids_from_input_ids")), None)
        base.register_forward_pre_hook(self._enter, with_kwargs=True)
        base.register_forward_hook(self._leave, always_call=True)
        if isinstance(pooler := getattr(base, "pooler", None), nn.Module):
            pooler.register_forward_pre_hook(lambda module, given: (self._whole(given[0]), *given[1:]))

    @contextmanager
    def splitting(self, by_token: bool) -> Iterator[None]:
        """Splits the positions of forward passes inside; heads get all of them again, or `by_token` own ones."""
        with replaced(self, "_splits", True), replaced(self, "_gathers", not by_token):
            yield

    def own(self, batch: Batch, by_token: bool) -> Batch:
        """Returns a batch with the labels that count here: of own positions, or all of them on the first process."""
        labels = batch["labels"]
        ignored = math.nan if labels.is_floating_point() else IGNORE_INDEX
        if not by_token:
            return batch if self.rank == 0 else {**batch, "labels": torch.full_like(labels, ignored)}
        length = -(-labels.shape[1] // self.size)
        labels = pad(labels, (0, length * self.size - labels.shape[1]), value=ignored)
        labels = labels[:, self.rank * length : (self.rank + 1) * length].contiguous()
        found: Batch = {**batch, "labels": labels}
        if "labelled" in batch:
            found["labelled"] = (labels.flatten() != IGNORE_INDEX).nonzero().squeeze(-1)
        return found

    def _enter(self, base: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not self._splits:
            return None
        given = {**dict(zip(self._names, arguments, strict=False)), **keywords}
        ids, table = given["input_ids"], self._table
        self._end, length = ids.shape[1], -(-ids.shape[1] // self.size)
        start = self.rank * length
        # Padding repeats the last position: there may be no number for one behind it.
        own = torch.arange(start, start + length, device=ids.device).clamp(max=self._end - 1)
        if given.get("position_ids") is None:
            counted = torch.arange(self._end, device=ids.device).expand(len(ids), -1)
            found = counted if table is None else table.create_position_ids_from_input_ids(ids, table.padding_idx)
            given["position_ids"] = found
        given |= {name: given[name].index_select(1, own) for name in BY_POSITION if given.get(name) is not None}
        mask = torch.ones_like(ids) if given.get("attention_mask") is None else given["attention_mask"]
        given["attention_mask"] = pad(mask, (0, length * self.size - self._end))
        _PASS.set(Part(self.mesh, start, length))
        return (), given

    def _leave(self, base: nn.Module, arguments: Any, output: Any) -> Any:
        _PASS.set(None)
        if self._gathers and output is not None:
            output.last_hidden_state = self._whole(output.last_hidden_state)
        return output

    def _whole(self, states: Tensor) -> Tensor:
        """Returns the states `[B, T, size]` of all processes' `[B, T / n, size]`, whose gradients are added up."""
        return gathered(states, self.mesh, 1)[:, : self._end] if self._gathers else states

    def sum(self, loss: Tensor, model: nn.Module) -> None:
        """Adds up a loss and a model's gradients over the group, in place."""
        dist.all_reduce(loss, group=self.mesh.get_group())
        average_gradients(self.wire, [each for each in model.parameters() if each.requires_grad], 1.0)

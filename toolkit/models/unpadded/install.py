"""Lets a model run without the padding of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from toolkit.models.unpadded.attention import attend
from toolkit.models.unpadded.islands import TOKENS, hook_island, island_of, packing_of
from toolkit.models.unpadded.layers import hook, parameters_of, plain, refuse_states, self_packing, stacks
from toolkit.models.unpadded.packing import packed_mask, packed_mask_where_it_pays

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAMES = ALWAYS, WHERE_IT_PAYS = "unpadded_sdpa", "unpadded_sdpa_where_it_pays"
"""Names of the attention among transformers'; a name with `sdpa` gets the checks of transformers for it."""


def install(model: PreTrainedModel, always: bool = True) -> None:
    """Installs the hooks and the attention on a model; the caller has checked that it is covered.

    Training, evaluation and recomputed activations run without padding; generation with a cache of keys, and batches
    without padding, run as before. Two passes may be in flight at once.

    Args:
        model: the model.
        always: whether batches with so little padding that this takes longer run without it too. Those of
            encoder-decoders always do, since both sides run in the same way.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    for name, mask in ((ALWAYS, packed_mask), (WHERE_IT_PAYS, packed_mask_where_it_pays)):
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, mask)
    name = ALWAYS if always or model.config.is_encoder_decoder else WHERE_IT_PAYS
    for stack in stacks(model):
        islands = [island_of(layer) for layer in stack]
        if islands[0] is None:
            hook(stack, self_packing)
            continue
        hook(stack, partial(packing_of, TOKENS[type(islands[0]).__name__]))
        for island in islands:
            assert island is not None
            hook_island(island)
    model.register_forward_pre_hook(refuse_states, with_kwargs=True)
    for owner in _owners(model):
        owner.register_forward_pre_hook(partial(plain, parameters_of(owner)), with_kwargs=True)
        _use_attention(owner.config, name)


def _owners(model: nn.Module) -> Iterator[Any]:
    """Yields the innermost models of transformers that have a stack."""
    from transformers import PreTrainedModel

    inside = {id(module) for stack in stacks(model) for module in stack}
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    for owner in models:
        parts = list(owner.modules())
        if any(id(part) in inside for part in parts) and not any(m is not owner and m in parts for m in models):
            yield owner


def _use_attention(config: Any, name: str) -> None:
    """Selects the attention for a model and those inside it; models with attention of their own keep it."""
    if config._attn_implementation == "sdpa":
        config._attn_implementation = name

"""Installs the hooks by which a stack of layers gets the tokens of a batch, and its result the padding again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from toolkit.models.unpadded.attention import attend
from toolkit.models.unpadded.packing import Packing, Rows, packed_mask, packed_mask_where_it_pays, places

if TYPE_CHECKING:
    from transformers import PreTrainedModel


SHARED = ("position_embeddings", "position_ids", "cos", "sin", "sinusoidal_pos")
"""Arguments of layers with one value per position of the padded batch."""
CROSS_MASK, CROSS_STATES = "encoder_attention_mask", "encoder_hidden_states"
WHOLE = ("AlbertTransformer",)
"""Classes of stacks whose layers share their weights: the stack is handled like a single layer."""
OTHER_LAYERS = ("MPNetLayer",)
"""Classes of layers that transformers does not mark as such."""
STATES = ("output_hidden_states", "output_attentions")

Given = dict[str, Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of a call."""


def stacks(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yields the layers of each stack, in the order in which they run."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    whole = [module for module in model.modules() if type(module).__name__ in WHOLE]
    inside = {id(part) for module in whole for part in module.modules()}
    for module in model.modules():
        if type(module).__name__ in WHOLE:
            yield [module]
        elif isinstance(module, nn.ModuleList) and len(module) and id(module) not in inside:
            # Feature extractors of speech models have layers too, of convolutions.
            layers = [
                layer
                for layer in module
                if (isinstance(layer, GradientCheckpointingLayer) or type(layer).__name__ in OTHER_LAYERS)
                and not type(layer).__name__.endswith("ConvLayer")
            ]
            if len(layers) == len(module):
                yield layers


class _Hooks:
    """Hooks of a module; `find` finds the packing among its arguments."""

    def __init__(self, module: nn.Module, find: Callable[[Given], Packing | None] | None = None) -> None:
        self.names, self.find = list(inspect.signature(module.forward).parameters), find or self_packing

    def _given(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Given:
        """Returns the arguments of a call by name."""
        return {**dict(zip(self.names, arguments, strict=False)), **keywords}

    def _replaced(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any], changes: Given) -> Arguments:
        """Returns the arguments of a call with some of them changed."""
        kept = tuple(changes.get(name, value) for name, value in zip(self.names, arguments, strict=False))
        positional = self.names[: len(arguments)]
        return kept, {**keywords, **{name: value for name, value in changes.items() if name not in positional}}

    def enter(self, layer: nn.Module, arguments: tuple[Any, ...], keywords: Given) -> Arguments | None:
        """Hook before a layer: takes the tokens out of a padded batch, and out of all that belongs to its positions.

        A layer that gets a cache of keys, as in generation, runs padded, and so does one without padding.
        """
        from transformers.cache_utils import Cache

        given = self._given(arguments, keywords)
        packing = self.find(given)
        if packing is None or any(isinstance(value, Cache) for value in given.values()):
            return None
        rows, states = packing.queries, given[self.names[0]]
        foreign = isinstance(given.get(CROSS_MASK), Tensor) or not (rows.holds(states) or rows.fits(states))
        if foreign:  # masks or rows that were not made together, with which attention runs padded
            return None
        changes = {self.names[0]: states if rows.holds(states) else rows.take(states)}
        changes |= {name: _taken(packing, given[name]) for name in SHARED if given.get(name) is not None}
        changes |= _crossing(given, rows) | _biases(layer, self.names, given, rows)
        return self._replaced(arguments, keywords, changes)

    def leave(self, layer: nn.Module, arguments: tuple[Any, ...], keywords: Given, output: Any) -> Any:
        """Hook after the last layer: puts the tokens back into a padded batch."""
        packing = self.find(self._given(arguments, keywords))
        if packing is None:
            return output
        rows = packing.queries
        return with_states(output, lambda states: rows.put(states) if rows.holds(states) else states)

    def enter_island(self, module: nn.Module, arguments: tuple[Any, ...], keywords: Given) -> Arguments | None:
        """Hook before an attention module that must see the padded batch."""
        given = self._given(arguments, keywords)
        packing = self.find(given)
        if packing is None or not packing.queries.holds(given[self.names[0]]):
            return None
        return self._replaced(arguments, keywords, {self.names[0]: packing.queries.put(given[self.names[0]])})

    def leave_island(self, module: nn.Module, arguments: tuple[Any, ...], keywords: Given, output: Any) -> Any:
        """Hook after such a module: takes the tokens out again."""
        packing = self.find(self._given(arguments, keywords))
        return output if packing is None else with_states(output, packing.queries.take)

    def plain(self, model: nn.Module, arguments: tuple[Any, ...], keywords: Given) -> Arguments | None:
        """Hook before a stack's model: no cache, and no inner states, which heads of speech models collect and drop."""
        given = self._given(arguments, keywords)
        changes: Given = {name: False for name in STATES if given.get(name)}
        if "use_cache" in self.names and given.get("past_key_values") is None:
            changes["use_cache"] = False
        return self._replaced(arguments, keywords, changes) if changes else None


def with_states(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns a module's output with its first tensor changed; the output is a tensor, a tuple or a `ModelOutput`."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple):
        return change(output[0]), *output[1:]
    output.last_hidden_state = change(output.last_hidden_state)
    return output


def self_packing(given: Given) -> Packing | None:
    """Returns the packing of the layer's own tokens."""
    return next((value for name, value in given.items() if isinstance(value, Packing) and name != CROSS_MASK), None)


def reject_states(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Hook before the whole model: a ValueError if states or attention weights of unpadded layers are requested."""
    for name in STATES:
        if keywords.get(name):
            raise ValueError(f"{name}: the layers of a model without padding (train.unpadded) cannot return theirs")


def _taken(packing: Packing, value: Any) -> Any:
    """Returns the tokens of a tensor `[B or 1, T, ...]`, or of each in a tuple."""
    if isinstance(value, tuple):
        return tuple(_taken(packing, part) for part in value)
    if not isinstance(value, Tensor) or packing.queries.holds(value):
        return value
    return packing.take(value)


def _crossing(given: Given, rows: Rows) -> Given:
    """Returns the tokens of the encoder for a decoder's layer, and their packing."""
    states = given.get(CROSS_STATES)
    if states is None:
        return {}
    packing = given.get(CROSS_MASK)
    if packing is None:  # the encoder's batch has no padding
        keys = Rows(None, [states.shape[1]] * states.shape[0], states.shape[1])
        packing = Packing(keys, rows, False, None, {})
        return {CROSS_STATES: _encoded(packing, states), CROSS_MASK: packing}
    assert isinstance(packing, Packing), f"{CROSS_MASK} is a {type(packing).__name__}"
    return {CROSS_STATES: _encoded(packing, states), CROSS_MASK: replace(packing, queries=rows)}


def _encoded(packing: Packing, states: Tensor) -> Tensor:
    """Returns the tokens of the encoder.

    Layers share them, but not where a version of transformers recomputes a layer together with this hook: the first
    layer would find them, which it took in the forward pass, and save less than before.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    with_hooks = "__call__" in vars(GradientCheckpointingLayer)
    return packing.keys.take(states) if with_hooks and states.requires_grad else packing.take(states)


def _biases(layer: nn.Module, names: list[str], given: Given, rows: Rows) -> Given:
    """Returns the position biases that T5's layers would compute for all tokens as one long sequence."""
    changes: Given = {}
    if "position_bias" in names and given.get("position_bias") is None:
        own = [module for module in layer.modules() if getattr(module, "has_relative_attention_bias", False)]
        if own:
            changes["position_bias"] = own[0].compute_bias(rows.longest, rows.longest)  # type: ignore[operator]
    cross = "encoder_decoder_position_bias"
    if cross in names and given.get(cross) is None and given.get(CROSS_STATES) is not None:
        changes[cross] = torch.zeros(1, 1, 1, 1, dtype=given[names[0]].dtype, device=given[names[0]].device)
    return changes


TOKENS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "DisentangledSelfAttention": lambda mask: mask[:, 0].diagonal(dim1=1, dim2=2).bool(),
    "MPNetSelfAttention": lambda mask: mask[:, 0, 0] == 0,
    "WavLMAttention": lambda mask: mask.bool(),
}
"""Classes of such modules, and which positions `[B, T]` their mask leaves as tokens."""
NOTE = "_unpadded"
"""Attribute of a mask with its packing, or None; it ends with the mask, so that passes do not disturb each other."""


def packing_of(tokens: Callable[[Tensor], Tensor], given: Given) -> Packing | None:
    """Returns the packing of the mask among a module's arguments, which all layers of a pass share."""
    mask = given.get("attention_mask")
    if not isinstance(mask, Tensor):
        return None
    if not hasattr(mask, NOTE):
        rows = Rows.of(tokens(mask))
        packing = Packing(rows, rows, False, None, {}) if rows is not None and rows.is_padded else None
        setattr(mask, NOTE, packing)
    found: Packing | None = getattr(mask, NOTE)
    return found


def island_of(layer: nn.Module) -> nn.Module | None:
    """Returns the attention module of a layer that must stay padded, or None."""
    return next((module for module in layer.modules() if type(module).__name__ in TOKENS), None)


ALWAYS = "unpadded_sdpa"
"""Begins the names of the attention among transformers'; a name with `sdpa` gets the checks of transformers for it."""
WHERE_IT_PAYS = f"{ALWAYS}_where_it_pays"


class _Packed(_Hooks):
    """Hooks of a decoder: rows of a batch share one, where they fit behind each other.

    Positions start anew at each row, by which transformers keeps attention within it (and within padding), whatever the
    kernel.
    """

    def enter(self, model: nn.Module, arguments: tuple[Any, ...], keywords: Given) -> Arguments | None:
        """Hook before the decoder: puts rows together; a batch with other inputs, or a cache, stays as it is."""
        given = self._given(arguments, keywords)
        ids: Any = given.get("input_ids")
        mask: Any = given.get("attention_mask")
        tensors = {name for name, value in given.items() if isinstance(value, Tensor)}
        if tensors != {"input_ids", "attention_mask"} or given.get("past_key_values") is not None:
            return None
        rows = Rows.of(mask.bool()) if mask.dim() == 2 else None
        starts, count = places(rows.lengths, rows.longest) if rows is not None else ([], 0)
        if rows is None or count == len(rows.lengths):
            return None
        each = [torch.arange(length, device=ids.device) for length in rows.lengths]
        where = torch.cat([place + start for place, start in zip(each, starts, strict=True)])
        positions = torch.arange(rows.longest, device=ids.device).repeat(count)
        positions = positions.index_copy(0, where, torch.cat(each)).view(count, -1)
        together = ids.new_zeros(count * rows.longest).index_copy(0, where, rows.take(ids)[0]).view(count, -1)
        setattr(positions, NOTE, (rows, where))
        changes = {"input_ids": together, "attention_mask": None, "position_ids": positions, "use_cache": False}
        return self._replaced(arguments, keywords, changes)

    def leave(self, model: nn.Module, arguments: tuple[Any, ...], keywords: Given, output: Any) -> Any:
        """Hook after the decoder: puts its states back into the batch."""
        found = getattr(self._given(arguments, keywords).get("position_ids"), NOTE, None)
        if found is None:
            return output
        rows, where = found
        return with_states(output, lambda states: rows.put(states.flatten(0, 1).index_select(0, where)[None]))


def install(
    model: PreTrainedModel,
    always: bool = True,
    packed: bool = False,
    compiled: bool = False,
    multiple: int | None = None,
) -> None:
    """Installs the hooks and the attention on a model; the caller has checked that it is covered.

    Training, evaluation and recomputed activations run without padding; generation with a cache of keys, and batches
    without padding, run as before. Two passes may be in flight at once.

    Args:
        model: the model.
        always: whether batches with so little padding that this takes longer run without it too. Batches of
            encoder-decoders always do, since both sides run in the same way.
        packed: whether rows share one instead.
        compiled: whether layers will be compiled, around their attention, which reads the lengths of rows.
        multiple: number of tokens to whose multiples a batch is filled up, so that layers see few shapes.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if packed:
        for decoder in _owners(model):
            shared = _Packed(decoder)
            decoder.register_forward_pre_hook(shared.enter, with_kwargs=True)
            decoder.register_forward_hook(shared.leave, with_kwargs=True)
        return
    name, mask = ALWAYS, packed_mask
    if multiple is not None:
        name, mask = f"{ALWAYS}_{multiple}", partial(packed_mask, multiple=multiple)
    elif not (always or model.config.is_encoder_decoder):
        name, mask = WHERE_IT_PAYS, packed_mask_where_it_pays
    AttentionInterface.register(name, torch.compiler.disable(attend) if compiled else attend)
    AttentionMaskInterface.register(name, mask)
    for stack in stacks(model):
        islands = [island for layer in stack if (island := island_of(layer)) is not None]
        find = partial(packing_of, TOKENS[type(islands[0]).__name__]) if islands else None
        for layer in stack:
            layer.register_forward_pre_hook(_Hooks(layer, find).enter, with_kwargs=True)
        stack[-1].register_forward_hook(_Hooks(stack[-1], find).leave, with_kwargs=True)
        for island in islands:
            hooks = _Hooks(island, find)
            island.register_forward_pre_hook(hooks.enter_island, with_kwargs=True)
            island.register_forward_hook(hooks.leave_island, with_kwargs=True)
    model.register_forward_pre_hook(reject_states, with_kwargs=True)
    for owner in _owners(model):
        owner.register_forward_pre_hook(_Hooks(owner).plain, with_kwargs=True)
        if owner.config._attn_implementation == "sdpa":  # models with attention of their own keep it
            owner.config._attn_implementation = name


def _owners(model: nn.Module) -> Iterator[Any]:
    """Yields the innermost models of transformers that have a stack."""
    from transformers import PreTrainedModel

    inside = {id(module) for stack in stacks(model) for module in stack}
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    for owner in models:
        parts = list(owner.modules())
        if any(id(part) in inside for part in parts) and not any(m is not owner and m in parts for m in models):
            yield owner

"""Attention modules with code of their own, which stay padded inside layers without padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from toolkit.models.unpadded.layers import Given, named, parameters_of, replaced, with_states
from toolkit.models.unpadded.packing import Packing
from toolkit.models.unpadded.rows import Rows

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


def hook_island(module: nn.Module) -> None:
    """Installs the hooks that let an attention module see the padded batch."""
    find, names = partial(packing_of, TOKENS[type(module).__name__]), parameters_of(module)
    module.register_forward_pre_hook(partial(_enter, find, names), with_kwargs=True)
    module.register_forward_hook(partial(_leave, find, names), with_kwargs=True)


def _enter(
    find: Callable[[Given], Packing | None],
    names: list[str],
    module: nn.Module,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    given = named(names, arguments, keywords)
    packing = find(given)
    if packing is None or not packing.queries.holds(given[names[0]]):
        return None
    return replaced(names, arguments, keywords, {names[0]: packing.queries.put(given[names[0]])})


def _leave(
    find: Callable[[Given], Packing | None],
    names: list[str],
    module: nn.Module,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    output: Any,
) -> Any:
    packing = find(named(names, arguments, keywords))
    return output if packing is None else with_states(output, packing.queries.take)

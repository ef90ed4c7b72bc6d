"""Computes a language model's logits only where there is a label; loss and gradients are the same."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from toolkit.api.batch import needed


def head_at_labels(model: Any) -> None:
    """Lets a model's output head compute logits only where the current pass needs them.

    They are then `[1, n, vocabulary]`, in the order of the positions. What a model does with its logits (a bias, a
    factor, a soft cap) is the same for every position. Models whose head is no module of its own, or has inputs that
    are not aligned with the labels, compute all logits.

    Args:
        model: a model of transformers, with or without adapters.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(head, nn.Module):
        head.register_forward_pre_hook(_select)


def _select(head: nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
    places, hidden = needed(), arguments[0]
    if places is None or hidden.dim() != 3 or hidden.shape[:2] != places.shape:
        return None
    if len(places.positions) == places.shape.numel():
        return None
    selected: Tensor = hidden.flatten(0, 1).index_select(0, places.positions)
    return (selected[None], *arguments[1:])

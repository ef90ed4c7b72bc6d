"""Activation checkpointing of several layers at once (Chen et al. 2016, arXiv 1604.06174).

Checkpointing each of n layers keeps n inputs. Segments of about the square root of n layers keep one input each, and
the backward pass recomputes one segment at a time, with all activations of its layers: both grow with that root.

The layers of a segment are called by the model's own code. Hooks on the first and the last of them begin and end a
region whose saved tensors are recomputed together, as `torch.distributed._composable.checkpoint` does for one module.
Calls are recorded without tensors computed inside the segment; those are recomputed.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import get_device_states, noop_context_fn, set_device_states

from toolkit.base.errors import RunError

Contexts: TypeAlias = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
"""Returns the contexts of a part of the forward pass and of its recomputation in the backward pass."""
CACHES = {"use_cache": False, "past_key_values": None, "past_key_value": None, "layer_past": None}
"""Arguments of layers that would update a cache of keys a second time, and what recomputed layers get instead."""


def segment_layers(layers: Sequence[nn.Module], segments: int | None, contexts: Contexts | None = None) -> None:
    """Makes the layers of a stack recompute their activations in segments; None is about the root of their number."""
    size = math.ceil(len(layers) / (segments or math.ceil(math.sqrt(len(layers)))))
    for start in range(0, len(layers), size):
        _Segment(layers[start : start + size], contexts or noop_context_fn)


class _Reference(NamedTuple):
    """A tensor that an earlier layer of the segment has returned: the number of its call, and its place."""

    call: int
    place: int


class _Given(NamedTuple):
    """A tensor from outside the segment: its place among the kept ones."""

    place: int


@dataclass
class _Pass:
    """What one forward pass through a segment has recorded."""

    kept: list[Tensor] = field(default_factory=list)
    """Tensors from outside the segment; the first call's only during the forward pass."""
    calls: list[tuple[nn.Module, Any, Sequence[Any], Any]] = field(default_factory=list)
    """Layers with the structure and the leaves of their arguments, and the random state before each."""
    outputs: dict[int, tuple[weakref.ref[Tensor], _Reference]] = field(default_factory=dict)
    """Results of layers of the segment by `id`, while they are alive."""

    def record(self, layer: nn.Module, arguments: Any) -> None:
        """Records a call; a layer that does not take the result of the one before is a RunError."""
        leaves, structure = tree_flatten(arguments)
        found = [self._leaf(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        last = len(self.calls) - 1
        if last >= 0 and not any(isinstance(leaf, _Reference) and leaf.call == last for leaf in found):
            raise RunError(
                f"train.activation_checkpointing: the layers of type {type(layer).__name__} do not pass their results "
                "on to each other, so they have no segments; set it to full"
            )
        self.calls.append((layer, structure, found, (torch.get_rng_state(), get_device_states(*leaves))))

    def _leaf(self, tensor: Tensor) -> _Reference | _Given:
        known = self.outputs.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        for place, other in enumerate(self.kept):
            if other is tensor:
                return _Given(place)
        self.kept.append(tensor)
        return _Given(len(self.kept) - 1)

    def note(self, output: Any) -> None:
        """Notes what the last recorded call has returned."""
        number = len(self.calls) - 1
        for place, leaf in enumerate(tree_flatten(output)[0]):
            if isinstance(leaf, Tensor):
                self.outputs[id(leaf)] = weakref.ref(leaf), _Reference(number, place)

    def replay(self, *first: Tensor) -> None:
        """Calls the layers again with their random numbers, and the first call's tensors, which torch has kept."""
        results: list[list[Any]] = []
        for layer, structure, leaves, (cpu, (devices, states)) in self.calls:
            torch.set_rng_state(cpu)
            set_device_states(devices, states)
            given = [self._value(leaf, results, first) for leaf in leaves]
            args, kwargs = tree_unflatten(given, structure)
            # Not the module itself, whose hooks have run.
            results.append(tree_flatten(layer.forward(*args, **kwargs))[0])

    def _value(self, leaf: Any, results: list[list[Any]], first: Sequence[Tensor]) -> Any:
        if isinstance(leaf, _Reference):
            return results[leaf.call][leaf.place]
        if not isinstance(leaf, _Given):
            return leaf
        return first[leaf.place] if leaf.place < len(first) else self.kept[leaf.place - len(first)]


class _Segment:
    """Hooks on the layers of a segment."""

    def __init__(self, layers: Sequence[nn.Module], contexts: Contexts) -> None:
        self.contexts, self.first, self.last = contexts, layers[0], layers[-1]
        self.current: _Pass | None = None
        self.region: Generator[None, None, None] | None = None
        for layer in layers:
            layer.register_forward_pre_hook(self._before, with_kwargs=True)
            # Before other hooks, which see what the layer has returned as well.
            layer.register_forward_hook(self._after, prepend=True, always_call=True)

    def _before(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if layer is self.first:
            self._close()  # a pass that an error has ended
            self.current = _Pass() if layer.training and torch.is_grad_enabled() else None
        if self.current is None:
            return None
        kwargs = {name: CACHES.get(name, value) for name, value in kwargs.items()}
        try:
            self.current.record(layer, (args, kwargs))
        except RunError:
            self._close()
            raise
        if layer is self.first:
            self._open(self.current)
        return args, kwargs

    def _open(self, current: _Pass) -> None:
        from torch.utils.checkpoint import _checkpoint_without_reentrant_generator

        settings = (True, self.contexts, "default", False, True)  # random state, contexts, checks, debug, early stop
        self.region = _checkpoint_without_reentrant_generator(current.replay, *settings, *current.kept)
        self.num_first = len(current.kept)
        next(self.region)

    def _after(self, layer: nn.Module, args: Any, output: Any) -> None:
        if self.current is None:
            return
        if output is None:  # the layer has failed
            self._close()
        elif layer is not self.last:
            self.current.note(output)
        else:
            assert self.region is not None
            with suppress(StopIteration):
                next(self.region)
            self.current.outputs.clear()
            del self.current.kept[: self.num_first]
            self.current = self.region = None

    def _close(self) -> None:
        if self.region is not None:
            self.region.close()
        self.current = self.region = None

"""Activation checkpointing of several layers at once (Chen et al. 2016, arXiv 1604.06174).

Checkpointing each of n layers keeps n inputs. Segments of about the square root of n layers keep one input each, and
the backward pass recomputes one segment at a time, with all activations of its layers: both grow with that root.
Segments of segments, in halves down to single layers, keep one input for each of about log2(n) levels, and compute each
layer again about log2(n) / 2 + 1 times (Griewank 1992, doi 10.1080/10556789208805505; section 4.3 of Chen et al.).

The layers of a segment are called by the model's own code. Hooks on the first and the last of them begin and end a
region whose saved tensors are recomputed together, as `torch.distributed._composable.checkpoint` does for one module.
Calls are recorded without tensors computed inside the segment; those are recomputed. Layers whose parameters are
sharded (FSDP2) are gathered one by one for that, and freed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import get_device_states, noop_context_fn, set_device_states

from toolkit.base.errors import RunError
from toolkit.distributed.placement import gathered

Contexts: TypeAlias = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
"""Returns the contexts of a part of the forward pass and of its recomputation in the backward pass."""
CACHES = {"use_cache": False, "past_key_values": None, "past_key_value": None, "layer_past": None}
"""Arguments of layers that would update a cache of keys a second time, and what recomputed layers get instead."""


def segment_layers(
    layers: Sequence[nn.Module], segments: int | None, contexts: Contexts | None = None, nested: bool = False
) -> None:
    """Makes the layers of a stack recompute their activations in segments; None is about the root of their number.

    Nested segments consist of two segments each, down to single layers.
    """
    size = math.ceil(len(layers) / (segments or math.ceil(math.sqrt(len(layers)))))
    for start in range(0, len(layers), size):
        _Segment(layers[start : start + size], contexts or noop_context_fn, nested)


def gathered_again(setting: str, layers: int) -> int:
    """Returns how often recomputation gathers a sharded layer, all of them together; not before its backward pass."""
    if setting == "nested_segments":
        half = math.ceil(layers / 2)
        return half + gathered_again(setting, half) + gathered_again(setting, layers - half) if layers > 1 else 0
    if not setting.startswith("segments"):
        return 0
    size = math.ceil(layers / int(setting.partition("_")[2] or math.ceil(math.sqrt(layers)) or 1))
    return layers - math.ceil(layers / max(size, 1))


class _Reference(NamedTuple):
    """A tensor that a layer of the segment has returned: the number of its call, and its place."""

    call: int
    place: int


class _Given(NamedTuple):
    """A tensor from outside the segment: its place among the kept ones."""

    place: int


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Returns what a tensor has in common with its aliases: FSDP2 gives layers aliases of what others returned."""
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version


@dataclass
class _Pass:
    """What one forward pass through a segment has recorded."""

    kept: list[Tensor] = field(default_factory=list)
    """Tensors from outside the segment; the first call's only during the forward pass."""
    calls: list[tuple[nn.Module, Any, Sequence[Any], Any]] = field(default_factory=list)
    """Layers with the structure and the leaves of their arguments, and the random state before each."""
    last: dict[_Reference, int] = field(default_factory=dict)
    """Number of the last call that takes a result of a layer of the segment."""
    seen: dict[Any, tuple[StorageWeakRef, _Reference | _Given]] = field(default_factory=dict)
    """Tensors of the pass by `_place`; a weak reference keeps the address of their memory from being used again."""

    def record(self, layer: nn.Module, arguments: Any, state: Any) -> None:
        """Records a call; a layer that does not take the result of the one before is a RunError."""
        leaves, structure = tree_flatten(arguments)
        number = len(self.calls)
        found = [self._leaf(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        taken = [leaf for leaf in found if isinstance(leaf, _Reference)]
        if number and not any(leaf.call == number - 1 for leaf in taken):
            raise RunError(
                f"train.activation_checkpointing: the layers of type {type(layer).__name__} do not pass their results "
                "on to each other, so they have no segments; set it to full"
            )
        self.last |= dict.fromkeys(taken, number)
        self.calls.append((layer, structure, found, state or (torch.get_rng_state(), get_device_states(*leaves))))

    def _leaf(self, tensor: Tensor) -> _Reference | _Given:
        if (place := _place(tensor)) not in self.seen:
            self.kept.append(tensor)
            self._see(tensor, _Given(len(self.kept) - 1))
        return self.seen[place][1]

    def _see(self, tensor: Tensor, leaf: _Reference | _Given) -> None:
        self.seen[_place(tensor)] = StorageWeakRef(tensor.untyped_storage()), leaf

    def note(self, output: Any) -> None:
        """Notes what the last recorded call has returned."""
        for place, leaf in enumerate(tree_flatten(output)[0]):
            if isinstance(leaf, Tensor):
                self._see(leaf, _Reference(len(self.calls) - 1, place))

    def replay(self, segment: _Segment, *first: Tensor) -> None:
        """Calls the layers again with their random numbers, and the first call's tensors, which torch has kept."""
        results: dict[_Reference, Any] = {}
        try:
            for number, (layer, structure, leaves, (cpu, (devices, states))) in enumerate(self.calls):
                torch.set_rng_state(cpu)
                set_device_states(devices, states)
                args, kwargs = tree_unflatten([self._value(leaf, results, first) for leaf in leaves], structure)
                output = tree_flatten(segment.call(layer, args, kwargs))[0]
                results |= {_Reference(number, place): leaf for place, leaf in enumerate(output)}
                results = {leaf: value for leaf, value in results.items() if self.last.get(leaf, 0) > number}
        finally:
            for each in reversed(segment.inner):  # torch ends a replay once it has all that it needs
                each.close()

    def _value(self, leaf: Any, results: dict[_Reference, Any], first: Sequence[Tensor]) -> Any:
        if isinstance(leaf, _Reference):
            return results[leaf]
        if not isinstance(leaf, _Given):
            return leaf
        return first[leaf.place] if leaf.place < len(first) else self.kept[leaf.place - len(first)]


class _Segment:
    """Hooks on the layers of a segment, which may consist of `inner` segments."""

    def __init__(
        self, layers: Sequence[nn.Module], contexts: Contexts, nested: bool, outer: _Segment | None = None
    ) -> None:
        self.contexts, self.layers, self.outer = contexts, layers, outer
        self.current: _Pass | None = None
        self.region: Generator[None, None, None] | None = None
        for layer in layers:
            layer.register_forward_pre_hook(self._before, with_kwargs=True)
            # Before other hooks, which see what the layer has returned as well.
            layer.register_forward_hook(self._after, prepend=True, always_call=True)
        half = math.ceil(len(layers) / 2)
        halves = (layers[:half], layers[half:]) if nested and len(layers) > 1 else ()
        self.inner = [_Segment(part, contexts, nested, self) for part in halves]

    def _before(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        first = layer is self.layers[0]
        if first:
            self.close()  # a pass that an error has ended
            self.current = _Pass() if layer.training and torch.is_grad_enabled() else None
        if self.current is None:
            return None
        kwargs = {name: CACHES.get(name, value) for name, value in kwargs.items()}
        recorded = self.outer and self.outer.current
        try:
            self.current.record(layer, (args, kwargs), recorded.calls[-1][-1] if recorded else None)
        except RunError:
            self.close()
            raise
        if first:
            self._open(self.current)
        return args, kwargs

    def _open(self, current: _Pass) -> None:
        from torch.utils.checkpoint import _checkpoint_without_reentrant_generator

        settings = (True, self.contexts, "default", False, True)  # random state, contexts, checks, debug, early stop
        replay = partial(current.replay, self)
        self.region = _checkpoint_without_reentrant_generator(replay, *settings, *current.kept)
        self.num_first = len(current.kept)
        next(self.region)

    def call(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns what a layer returns, in the inner segments that it is part of."""
        inner = [each for each in self.inner if layer in each.layers]
        for each in inner:
            each._before(layer, args, kwargs)
        with gathered(layer):
            output = layer.forward(*args, **kwargs)  # not the module itself, whose hooks have run
        for each in inner:
            each._after(layer, args, output)
        return output

    def _after(self, layer: nn.Module, args: Any, output: Any) -> None:
        if self.current is None:
            return
        if output is None:  # the layer has failed
            self.close()
        elif layer is not self.layers[-1]:
            self.current.note(output)
        else:
            assert self.region is not None
            with suppress(StopIteration):
                next(self.region)
            self.current.seen.clear()
            del self.current.kept[: self.num_first]
            self.current = self.region = None

    def close(self) -> None:
        """Ends a pass."""
        if self.region is not None:
            self.region.close()
        self.current = self.region = None

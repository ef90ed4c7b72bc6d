"""Exchanges many tensors in a few flat buffers, and counts the bytes that are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch._ops import HigherOrderOperator
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toolkit.base.shards import local
from toolkit.distributed.collectives import sum_dtype
from toolkit.system.phases import in_phase

EXCHANGES, EXCHANGED_BYTES = "exchange_collectives", "exchange_bytes"
"""Metrics of a run on several processes: the number of its collectives and messages, and the bytes that it sent."""
PIECES = 3
"""Tensors of one type are sent in at most one piece more than this; more pieces only add latency."""
SMALL_PIECE = 2**22
"""Minimum number of elements of a piece; for fewer, copying costs less than another collective."""


def share_sent(size: int) -> float:
    """Returns the share of a tensor that each of `size` processes sends on average, so that all of them have it.

    This holds for a broadcast, an all-gather, whose tensor is the gathered one, and a reduce-scatter, whose tensor is
    the one to be reduced; an all-reduce is a reduce-scatter and an all-gather. Rings (Patarasuk and Yuan 2009) send
    this much, and nothing sends less.
    """
    return (size - 1) / size


class Wire:
    """Exchanges tensors between processes, in place, and counts what it sends.

    Every process of the group (None for all) must give tensors of the same shapes and types in the same order.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.bytes_sent = 0.0
        self.collectives = 0

    @in_phase("exchange")
    def mean(self, tensors: Sequence[Tensor], weight: float) -> float:
        """Replaces floating-point tensors by their means over processes, whose weights add up to 1.

        Returns the squared distance of this process's values from the mean, summed over all elements.
        """
        distance = 0.0
        for piece in pieces(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in piece]).mul_(weight)
            self._send(dist.all_reduce, flat, shares=2)
            squares = torch.zeros((), dtype=sum_dtype(flat.device), device=flat.device)
            for tensor, mean in _parts(piece, flat):
                squares += torch.linalg.vector_norm(tensor.detach() - mean, dtype=squares.dtype) ** 2
                tensor.detach().copy_(mean)
            distance += float(squares)
        return distance

    @in_phase("exchange")
    def copy_from(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Replaces each tensor by that of the process with a given rank in the group."""
        for piece in pieces(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in piece])
            self._send(dist.broadcast, flat, shares=1, group_src=rank)
            for tensor, value in _parts(piece, flat):
                tensor.detach().copy_(value)

    def copy_main(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by that of the main process."""
        self.copy_from(tensors, 0)

    def exchanged(self) -> dict[str, float]:
        """Returns the number of collectives and bytes sent so far, for the report."""
        return {EXCHANGES: float(self.collectives), EXCHANGED_BYTES: float(self.bytes_sent)}

    def _send(self, collective: Callable[..., Any], flat: Tensor, shares: int, **arguments: Any) -> None:
        collective(flat, group=self.group, **arguments)
        self.bytes_sent += shares * share_sent(dist.get_world_size(self.group)) * flat.numel() * flat.element_size()
        self.collectives += 1


@torch.no_grad()
def average_gradients(wire: Wire, parameters: Sequence[Tensor], weight: float) -> None:
    """Replaces each parameter's gradient by its mean over processes, with weights that add up to 1.

    Parameters are the same on every process, and may be split over others. A missing gradient counts as zero; if a
    parameter has no gradient on any process, it stays None.
    """
    if not parameters:
        return
    used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
    gradients = [torch.zeros_like(p.detach()) if p.grad is None else p.grad for p in parameters]
    wire.mean([*map(local, gradients), used], weight)
    for parameter, gradient, share in zip(parameters, gradients, used.tolist(), strict=True):
        parameter.grad = gradient if share > 0 else None


def pieces(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yields groups of tensors of one type and device, of similar total size; tensors are not split."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in groups.values():
        limit = max(sum(tensor.numel() for tensor in group) / max(1, PIECES // len(groups)), SMALL_PIECE)
        piece: list[Tensor] = []
        size = 0
        for tensor in group:
            piece.append(tensor)
            size += tensor.numel()
            if size >= limit:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece


def _parts(piece: Sequence[Tensor], flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields each tensor with its part of the flat one, in its shape."""
    parts = flat.split([tensor.numel() for tensor in piece])
    for tensor, part in zip(piece, parts, strict=True):
        yield tensor, part.view(tensor.shape)


COUNTED_STEPS = 2
"""Steps that are counted, since counting takes time; the last of them represents all. The first one has more checks."""
_SHARES = {"reduce_scatter": 1, "alltoall": 1, "all_reduce": 2, "allreduce": 2, "gather": 1, "broadcast": 1}
"""Shares of its complete tensor that a collective sends (`share_sent`), by a part of its name."""

F = TypeVar("F", bound=Callable[..., Any])


class Traffic(TorchDispatchMode):
    """Counts collectives and messages of this process, and the bytes that it sends for them (`share_sent`)."""

    def __init__(self) -> None:
        super().__init__()
        self.collectives = 0
        self.bytes_sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and counts it if it sends."""
        if not isinstance(func, HigherOrderOperator) and any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on local tensors, collectives among them, come here afterwards
        result = func(*args, **(kwargs or {}))
        if getattr(func, "namespace", None) in ("c10d", "_c10d_functional"):
            self._count(func._schema.name, args, result)
        return result

    def _count(self, name: str, args: Any, result: Any) -> None:
        if name == "c10d::send":
            self._add(bytes_of(args[0]))
        elif shares := next((count for part, count in _SHARES.items() if part in name), 0):
            complete = max(map(bytes_of, [*args, result]))  # gathering returns it, the others receive it
            self._add(shares * share_sent(_group_size(args)) * complete)

    def _add(self, size: float) -> None:
        self.collectives += 1
        self.bytes_sent += size


def bytes_of(tensors: Any) -> int:
    """Returns the bytes of all tensors in nested lists and dictionaries."""
    return sum(t.numel() * t.element_size() for t in tree_leaves(tensors) if isinstance(t, Tensor))


def _group_size(args: Any) -> int:
    """Returns the number of processes of the group that is among a collective's arguments, as an object or by name."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return dist.ProcessGroup.unbox(argument).size()
    name: Any = [argument for argument in args if isinstance(argument, str)][-1]
    return dist.distributed_c10d._resolve_process_group(name).size()


class Counted:
    """What a strategy sends in a step, counted in the first steps of a process."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()
        self._last: dict[str, Traffic] = {}

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        """Counts what is sent inside, which is the named part of a step."""
        self._counted[part] += 1
        if self._counted[part] > COUNTED_STEPS:
            yield
            return
        with Traffic() as self._last[part]:
            yield

    def count_steps_of(self, optimizer: Optimizer) -> None:
        """Counts what an optimizer's step sends."""
        step = optimizer.step

        def counted_step(optimizer: Optimizer, closure: Any = None) -> None:
            with self.counting("update"):
                step()

        optimizer.step = MethodType(counted_step, optimizer)  # type: ignore[method-assign]

    def of_steps(self, steps: int) -> dict[str, float]:
        """Returns what this process sends in a number of steps, for the report; nothing before the first one."""
        parts = self._last.values()
        if not parts:
            return {}
        return {
            EXCHANGES: float(steps * sum(part.collectives for part in parts)),
            EXCHANGED_BYTES: steps * sum(part.bytes_sent for part in parts),
        }


def counted(window_gradient: F) -> F:
    """Counts what a strategy's `window_gradient` sends, in its `traffic`."""

    @wraps(window_gradient)
    def counting(self: Any, *arguments: Any) -> Any:
        with self.traffic.counting("window"):
            return window_gradient(self, *arguments)

    return counting  # type: ignore[return-value]

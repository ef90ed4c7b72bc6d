"""Counts what a process sends, also inside FSDP2 and tensor parallelism, which do not count themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
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

from toolkit.distributed.exchange import EXCHANGED_BYTES, EXCHANGES, share_sent

COUNTED_STEPS = 2
"""Steps that are counted, since counting takes time; the last of them represents all. The first one has more checks."""
_SHARES = {"reduce_scatter": 1, "all_reduce": 2, "allreduce": 2, "gather": 1, "broadcast": 1}
"""Shares of its complete tensor that a collective sends (`share_sent`), by a part of its name."""

F = TypeVar("F", bound=Callable[..., Any])


class Traffic(TorchDispatchMode):
    """Counts collectives and messages of this process.

    Attributes:
        collectives: their number.
        bytes_sent: bytes that this process sent; for a collective the mean over its processes (`share_sent`).
    """

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
            self._add(_bytes(args[0]))
        elif shares := next((count for part, count in _SHARES.items() if part in name), 0):
            complete = max(map(_bytes, [*args, result]))  # gathering returns it, the others receive it
            self._add(shares * share_sent(_group_size(args)) * complete)

    def _add(self, size: float) -> None:
        self.collectives += 1
        self.bytes_sent += size


def _bytes(tensors: Any) -> int:
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

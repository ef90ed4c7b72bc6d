"""Counts floating-point operations by torch's own formulas, also of models that are split over processes."""

from __future__ import annotations

from typing import Any

from torch._ops import HigherOrderOperator
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class FlopCount(TorchDispatchMode):
    """Counts the operations of this process.

    `torch.utils.flop_counter.FlopCounterMode` counts an operation on a split tensor as if each process computed all of
    it, and hooks every module.

    Attributes:
        total: floating-point operations so far.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and counts it if there is a formula for it."""
        named, higher = kwargs or {}, isinstance(func, HigherOrderOperator)
        if not higher and any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on local tensors come here afterwards
        result = func(*args, **named)
        formula = flop_registry.get(func if higher else func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **named, out_val=result))
        return result

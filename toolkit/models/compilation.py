"""`torch.compile` for training passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from toolkit.config.sections import TrainConfig


def compile_training(model: nn.Module, train: TrainConfig) -> None:
    """Compiles a model's training passes in place as configured in `train`; parameter names do not change.

    Evaluation and generation are not compiled: their shapes vary more and they run less often.
    """
    if not train.torch_compile:
        return
    import torch._inductor.config as inductor

    # Dropout draws the same random numbers as without compilation, so that only rounding differs.
    inductor.fallback_random = True
    model.compile(backend=train.torch_compile_backend or "inductor", mode=train.torch_compile_mode)
    compiled: Callable[..., Any] = model._compiled_call_impl  # type: ignore[assignment]

    def call(*arguments: Any, **named: Any) -> Any:
        return (compiled if model.training else model._call_impl)(*arguments, **named)

    model._compiled_call_impl = call

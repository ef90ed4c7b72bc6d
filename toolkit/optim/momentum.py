"""Momentum that is cycled with the learning rate (`cycle_momentum` of `cyclic` and `one_cycle`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolkit.config.sections import TrainConfig
from toolkit.optim.presets import PRESETS
from toolkit.optim.shapes import SHAPES, bound, default_of
from toolkit.optim.span import Span

if TYPE_CHECKING:
    from torch.optim import Optimizer


def is_cycled(train: TrainConfig) -> bool:
    """Whether the schedule cycles the optimizer's momentum."""
    return train.lr_scheduler_kwargs.get("cycle_momentum") is True


def momentum_of(train: TrainConfig, total_steps: int) -> Callable[[int], float]:
    """Returns the momentum as a function of the step, for settings that cycle it.

    Args:
        train: the settings, without lengths in epochs (`toolkit.optim.lengths.in_steps`).
        total_steps: steps of the run.
    """
    function = SHAPES[train.lr_scheduler_type].momentum
    assert function is not None
    return bound(function, Span(0, total_steps, train.learning_rate), train.lr_scheduler_kwargs)


def start_momentum(train: TrainConfig) -> dict[str, Any]:
    """Returns arguments of the optimizer's constructor: the momentum that the cycle begins with, if there is one."""
    function = SHAPES[train.lr_scheduler_type].momentum
    if not is_cycled(train) or function is None:
        return {}
    highest = train.lr_scheduler_kwargs.get("max_momentum", default_of(function, "max_momentum"))
    preset = PRESETS[train.optim]
    found: dict[str, Any] = {"momentum": highest} if preset.has_momentum else {}
    return found | ({"betas": (highest, train.adam_beta2)} if "adam_beta1" in preset.takes else {})


def set_momentum(optimizer: Optimizer, value: float) -> None:
    """Sets the momentum of every group: `momentum`, and the first of `betas`."""
    for group in optimizer.param_groups:
        if "momentum" in group:
            group["momentum"] = value
        if "betas" in group:
            group["betas"] = (value, group["betas"][1])

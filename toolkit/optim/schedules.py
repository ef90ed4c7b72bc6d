"""Learning-rate schedules in optimizer steps; each rate depends on the step alone, so a run can resume at any step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from toolkit.config.fields import EPOCHS
from toolkit.config.messages import did_you_mean, show
from toolkit.config.sections import TrainConfig
from toolkit.optim.presets import PRESETS
from toolkit.optim.shapes import SHAPES, Span, bound, default_of, impossible, restarts

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


class Factor:
    """The factor of each group's peak rate at a step (from 0): `shape` times `scale`, which a callback reduces."""

    def __init__(self, shape: Callable[[int], float], scale: float = 1.0) -> None:
        self.shape, self.scale = shape, scale

    def __call__(self, step: int) -> float:
        """Returns the factor at a step."""
        return self.shape(step) * self.scale


def warmup_steps(train: TrainConfig, total_steps: int) -> int:
    """Returns the number of warm-up steps; a setting below 1 is a fraction of all steps, rounded up.

    The settings have no lengths in epochs (see `in_steps`).
    """
    assert not isinstance(train.warmup_steps, str)
    return int(train.warmup_steps) if train.warmup_steps >= 1 else math.ceil(train.warmup_steps * total_steps)


def peak_rate(train: TrainConfig) -> float:
    """Returns the peak rate: `train.learning_rate`, or 1.0 if the optimizer computes its own rate."""
    return 1.0 if PRESETS[train.optim].relative_step else train.learning_rate


def schedule_problems(train: TrainConfig) -> list[str]:
    """Returns one complete message for each unknown, missing or wrong argument in `train.lr_scheduler_kwargs`."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    shape, given = SHAPES[train.lr_scheduler_type], train.lr_scheduler_kwargs
    known = shape.arguments
    problems = []
    for name, value in given.items():
        key = f"train.lr_scheduler_kwargs.{name}"
        if name not in known:
            has = f"known: {', '.join(known)}" if known else "it has none"
            near = did_you_mean(name, list(known))
            problems.append(f"{key}: unknown argument of {train.lr_scheduler_type}; {has}{near}")
            continue
        try:
            TypeAdapter(known[name], config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            problems.append(f"{key}: received {show(value)}; {error.errors()[0]['msg'].removeprefix('Value error, ')}")
    problems += [
        f"train.lr_scheduler_kwargs.{name}: {train.lr_scheduler_type} requires it"
        for name in shape.required
        if name not in given
    ]
    return problems


def shape_problems(train: TrainConfig) -> list[str]:
    """Returns why arguments that are right by themselves give no schedule, as a complete message, or nothing."""
    given = train.lr_scheduler_kwargs
    problem = impossible(train.lr_scheduler_type, given, train.learning_rate) if not schedule_problems(train) else None
    return [f"train.lr_scheduler_kwargs: received {show(dict(given))}; {problem}"] if problem else []


def factor_of(train: TrainConfig, total_steps: int) -> Factor:
    """Returns the factor of the peak rate; the settings have no lengths in epochs (see `in_steps`)."""
    if PRESETS[train.optim].relative_step:
        rising = bool(train.optim_args.get("warmup_init", False))
        return Factor(lambda step: relative_step(step, rising))
    shape, warmup = SHAPES[train.lr_scheduler_type], warmup_steps(train, total_steps)
    span, given = Span(warmup, total_steps, train.learning_rate), train.lr_scheduler_kwargs
    # Arguments of `reduce_lr_on_plateau` are for its callback.
    factor = bound(shape.factor, span, given)
    if shape.warms_up:
        return Factor(factor)
    return Factor(lambda step: step / warmup if step < warmup else factor(step))


def relative_step(step: int, rising: bool) -> float:
    """Returns the step size of `adafactor_relative`, before scaling by the parameter (arXiv 1804.04235)."""
    return min(1e-6 * (step + 1) if rising else 1e-2, 1.0 / math.sqrt(step + 1))


def cycle_ends(train: TrainConfig, total_steps: int) -> list[int]:
    """Returns the last step of each cycle of `cosine_with_restarts`; arguments as for `factor_of`."""
    span, given = Span(warmup_steps(train, total_steps), total_steps, train.learning_rate), train.lr_scheduler_kwargs
    return [math.ceil(end) for end in restarts(span, given.get("num_cycles", 1), given.get("t_mult", 1.0))]


def build_schedule(optimizer: Optimizer, train: TrainConfig, total_steps: int) -> LambdaLR:
    """Builds the schedule named by `train.lr_scheduler_type`; arguments as for `factor_of`.

    It is not prepared by accelerate, which would step it once per process; step it once per update.
    """
    from torch.optim.lr_scheduler import LambdaLR

    return LambdaLR(optimizer, factor_of(train, total_steps))


def seek(schedule: LambdaLR, step: int) -> None:
    """Sets a schedule and its optimizer's rates to a step, also if the run is now longer than before."""
    schedule.last_epoch = step
    groups = schedule.optimizer.param_groups
    for group, base, factor in zip(groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
        group["lr"] = base * factor(step)
    schedule._last_lr = [group["lr"] for group in groups]


def is_cycled(train: TrainConfig) -> bool:
    """Whether the schedule cycles the optimizer's momentum."""
    return train.lr_scheduler_kwargs.get("cycle_momentum") is True


def momentum_of(train: TrainConfig, total_steps: int) -> Callable[[int], float]:
    """Returns the momentum as a function of the step, for settings that cycle it and have no lengths in epochs."""
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


def has_epochs(train: TrainConfig) -> bool:
    """Whether the schedule has a length in epochs."""
    lengths = (train.warmup_steps, *train.lr_scheduler_kwargs.values())
    return any(_is_epochs(each) for value in lengths for each in (value if isinstance(value, list) else [value]))


def in_steps(train: TrainConfig, steps_per_epoch: int) -> TrainConfig:
    """Returns the settings with each length of the schedule in steps; a part of a step counts as one."""
    kwargs = {name: _steps(value, steps_per_epoch) for name, value in train.lr_scheduler_kwargs.items()}
    return replace(train, warmup_steps=_steps(train.warmup_steps, steps_per_epoch), lr_scheduler_kwargs=kwargs)


def _is_epochs(value: Any) -> bool:
    return isinstance(value, str) and re.match(EPOCHS, value) is not None


def _steps(value: Any, steps_per_epoch: int) -> Any:
    if isinstance(value, list):
        return [_steps(each, steps_per_epoch) for each in value]
    return math.ceil(Fraction(value.split()[0]) * steps_per_epoch) if _is_epochs(value) else value

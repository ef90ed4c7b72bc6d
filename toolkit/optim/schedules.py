"""Learning-rate schedules in optimizer steps; each rate depends on the step alone, so a run can resume at any step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolkit.config.messages import did_you_mean, show
from toolkit.config.sections import TrainConfig
from toolkit.optim.presets import PRESETS
from toolkit.optim.shapes import SHAPES, bound, impossible
from toolkit.optim.span import Span
from toolkit.optim.transformers_shapes import restarts

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


class Factor:
    """The factor of each group's peak rate as a function of the step.

    Args:
        shape: the factor at a step (from 0), before scaling.
        scale: scale of the factor, which `toolkit.engine.callbacks.schedule` reduces.
    """

    def __init__(self, shape: Callable[[int], float], scale: float = 1.0) -> None:
        self.shape, self.scale = shape, scale

    def __call__(self, step: int) -> float:
        """Returns the factor at a step."""
        return self.shape(step) * self.scale


def warmup_steps(train: TrainConfig, total_steps: int) -> int:
    """Returns the number of warm-up steps; a setting below 1 is a fraction of all steps, rounded up.

    Args:
        train: the settings, without lengths in epochs (`toolkit.optim.lengths.in_steps`).
        total_steps: steps of the run.
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
    if not problems and (problem := impossible(train.lr_scheduler_type, given, train.learning_rate)):
        problems.append(f"train.lr_scheduler_kwargs: received {show(dict(given))}; {problem}")
    return problems


def factor_of(train: TrainConfig, total_steps: int) -> Factor:
    """Returns the factor of the peak rate.

    Args:
        train: the settings, without lengths in epochs (`toolkit.optim.lengths.in_steps`).
        total_steps: steps of the run.
    """
    if PRESETS[train.optim].relative_step:
        rising = bool(train.optim_args.get("warmup_init", False))
        return Factor(lambda step: relative_step(step, rising))
    shape, warmup = SHAPES[train.lr_scheduler_type], warmup_steps(train, total_steps)
    span, given = Span(warmup, total_steps, train.learning_rate), train.lr_scheduler_kwargs
    # Those of `reduce_lr_on_plateau` are for its callback.
    factor = bound(shape.factor, span, given)
    if shape.warms_up:
        return Factor(factor)
    return Factor(lambda step: step / warmup if step < warmup else factor(step))


def relative_step(step: int, rising: bool) -> float:
    """Returns the step size of `adafactor_relative`, before scaling by the parameter (arXiv 1804.04235).

    Args:
        step: the step, from 0.
        rising: whether the optimizer's `warmup_init` is set.
    """
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
    for group, base, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(step)
    schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]

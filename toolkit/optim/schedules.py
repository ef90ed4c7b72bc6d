"""Learning-rate schedules, in optimizer steps: each a factor of the peak rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from toolkit.config.sections import TrainConfig

Factor = Callable[[int], float]


def _warmup(step: int, warmup: int) -> float:
    return step / max(1, warmup)


def _constant(step: int, warmup: int, total: int) -> float:
    return _warmup(step, warmup) if step < warmup else 1.0


def _linear(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return _warmup(step, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


def _cosine(step: int, warmup: int, total: int) -> float:
    """Half a cosine from 1 to 0 (Loshchilov and Hutter 2017, arXiv 1608.03983)."""
    if step < warmup:
        return _warmup(step, warmup)
    progress = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


SCHEDULES: dict[str, Callable[..., float]] = {
    "linear": _linear,
    "cosine": _cosine,
    "constant": _constant,
    "constant_with_warmup": _constant,
}


def warmup_steps(train: TrainConfig, total_steps: int) -> int:
    """Returns the steps of warm-up; a setting below 1 is a fraction of all steps, rounded up."""
    return int(train.warmup_steps) if train.warmup_steps >= 1 else math.ceil(train.warmup_steps * total_steps)


def build_schedule(optimizer: Optimizer, train: TrainConfig, total_steps: int) -> LambdaLR:
    """Builds the schedule named by `train.lr_scheduler_type`.

    It is never prepared by accelerate, which would step it once per process, and is stepped once per update.
    """
    factor = SCHEDULES[train.lr_scheduler_type]
    return LambdaLR(optimizer, partial(factor, warmup=warmup_steps(train, total_steps), total=total_steps))


def seek(schedule: LambdaLR, step: int) -> None:
    """Sets a schedule to a step: the rates are those of its own length, also when the run was made longer."""
    schedule.last_epoch = step
    for group, base, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(step)
    schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]

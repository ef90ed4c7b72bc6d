"""Lengths of a learning-rate schedule that the YAML gives in epochs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from toolkit.config.fields import EPOCHS
from toolkit.config.sections import TrainConfig


def has_epochs(train: TrainConfig) -> bool:
    """Whether the schedule has a length in epochs."""
    return any(
        _is_epochs(each) for value in _lengths(train) for each in (value if isinstance(value, list) else [value])
    )


def in_steps(train: TrainConfig, steps_per_epoch: int) -> TrainConfig:
    """Returns the settings with each length of the schedule in steps; a part of a step counts as one.

    Args:
        train: the settings.
        steps_per_epoch: optimizer steps of an epoch, which depend on rows and windows but not on their split.
    """
    kwargs = {name: _steps(value, steps_per_epoch) for name, value in train.lr_scheduler_kwargs.items()}
    return replace(train, warmup_steps=_steps(train.warmup_steps, steps_per_epoch), lr_scheduler_kwargs=kwargs)


def _lengths(train: TrainConfig) -> list[Any]:
    return [train.warmup_steps, *train.lr_scheduler_kwargs.values()]


def _is_epochs(value: Any) -> bool:
    return isinstance(value, str) and re.match(EPOCHS, value) is not None


def _steps(value: Any, steps_per_epoch: int) -> Any:
    if isinstance(value, list):
        return [_steps(each, steps_per_epoch) for each in value]
    return math.ceil(Fraction(value.split()[0]) * steps_per_epoch) if _is_epochs(value) else value

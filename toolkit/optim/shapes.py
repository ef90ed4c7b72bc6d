"""Shapes of the learning rate: the factor of the peak rate as a function of the step alone.

A resumed run can therefore seek to any step. The schedules of torch compute each rate from that of the previous step;
here they are functions of the step, too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import Field

from toolkit.optim import transformers_shapes as library
from toolkit.optim.span import Count, CountOrZero, Decay, Floor, Span


class Shape(NamedTuple):
    """A shape of the learning rate.

    Args:
        factor: a function of step (from 0), span and arguments.
        arguments: types of the arguments that `train.lr_scheduler_kwargs` may have.
        required: arguments without a default.
        warms_up: whether it has its own warm-up instead of a linear one.
    """

    factor: Callable[..., float]
    arguments: Mapping[str, Any]
    required: tuple[str, ...] = ()
    warms_up: bool = False


def impossible(name: str, arguments: Mapping[str, Any], peak: float) -> str | None:
    """Returns what is wrong with the lowest rate in the arguments of a shape, or None.

    Args:
        name: the shape, as in `train.lr_scheduler_type`.
        arguments: its arguments, each valid by itself.
        peak: the peak rate.
    """
    known = SHAPES[name].arguments
    if "min_lr_rate" in known and (arguments.get("min_lr") is None) == (arguments.get("min_lr_rate") is None):
        return "give one of min_lr and min_lr_rate"
    if (start := arguments.get("start_lr", 0.0)) > peak > 0:
        return f"start_lr ({start:g}) is above train.learning_rate ({peak:g})"
    for lowest in ("min_lr", "base_lr"):
        if lowest in known and (value := arguments.get(lowest)) is not None and value > peak:
            return f"{lowest} ({value:g}) is above train.learning_rate ({peak:g})"
    if "lr_end" in known and (value := arguments.get("lr_end", 1e-7)) >= (peak or 1.0):
        return f"lr_end ({value:g}) is not below train.learning_rate ({peak:g})"
    return None


def step_decay(step: int, span: Span, *, step_size: Count, gamma: Decay = 0.1) -> float:
    """Multiplies the rate by `gamma` every `step_size` steps after the warm-up."""
    return gamma ** ((step - span.warmup) // step_size)


def multi_step(step: int, span: Span, *, milestones: list[Count], gamma: Decay = 0.1) -> float:
    """Multiplies the rate by `gamma` at each milestone, counted in steps after the warm-up."""
    return gamma ** bisect_right(sorted(milestones), step - span.warmup)


def exponential(step: int, span: Span, *, gamma: Decay) -> float:
    """Multiplies the rate by `gamma` in every step after the warm-up."""
    return gamma ** (step - span.warmup)


def cyclic(
    step: int,
    span: Span,
    *,
    base_lr: Floor,
    step_size_up: Count = 2000,
    step_size_down: Count | None = None,
    mode: Literal["triangular", "triangular2"] = "triangular",
) -> float:
    """Cycles linearly between `base_lr` and the peak (Smith 2017, arXiv 1506.01186).

    In `triangular2`, each cycle has half the amplitude of the one before.
    """
    length = step_size_up + (step_size_down or step_size_up)
    cycle, position = divmod(step, length)
    rise = position / step_size_up if position <= step_size_up else (length - position) / (length - step_size_up)
    low = base_lr / span.peak if span.peak else 0.0
    return low + (1.0 - low) * rise * (0.5**cycle if mode == "triangular2" else 1.0)


def one_cycle(
    step: int,
    span: Span,
    *,
    pct_start: Annotated[float, Field(gt=0, lt=1)] = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    div_factor: Annotated[float, Field(ge=1)] = 25.0,
    final_div_factor: Annotated[float, Field(ge=1)] = 1e4,
    three_phase: bool = False,
) -> float:
    """Rises to the peak and falls far below the initial rate, once (Smith and Topin 2018, arXiv 1708.07120)."""
    first, last = 1.0 / div_factor, 1.0 / (div_factor * final_div_factor)
    top, end = pct_start * span.total - 1, span.total - 1
    phases = [(top, first, 1.0)]
    if three_phase:
        phases += [(2 * top, 1.0, first), (end, first, last)]
    else:
        phases += [(end, 1.0, last)]
    start = 0.0
    for until, low, high in phases:
        if step <= until:
            part = (step - start) / (until - start) if until > start else 1.0
            bent = 0.5 * (1.0 - math.cos(math.pi * part)) if anneal_strategy == "cos" else part
            return low + (high - low) * bent
        start = max(0.0, until)
    return last


def range_test(
    step: int,
    span: Span,
    *,
    start_lr: Annotated[float, Field(gt=0)],
    mode: Literal["exponential", "linear"] = "exponential",
) -> float:
    """Rises from `start_lr` to the peak over all steps, to find a learning rate (Smith 2017, arXiv 1506.01186)."""
    low, part = start_lr / span.peak if span.peak else 1.0, min(1.0, step / max(1, span.total - 1))
    return float(low ** (1.0 - part)) if mode == "exponential" else low + (1.0 - low) * part


def _shape(factor: Callable[..., float], *required: str, warms_up: bool = False) -> Shape:
    """Returns a shape whose arguments are those of its function."""
    hints = get_type_hints(factor, include_extras=True)
    arguments = {name: hint for name, hint in hints.items() if name not in ("step", "span", "return")}
    return Shape(factor, arguments, required, warms_up)


PLATEAU = {
    "factor": Annotated[float, Field(gt=0, lt=1)],
    "patience": CountOrZero,
    "threshold": Floor,
    "threshold_mode": Literal["rel", "abs"],
    "cooldown": CountOrZero,
    "min_lr": Floor,
    "eps": Floor,
}
"""Arguments of `reduce_lr_on_plateau`, for the callback `plateau`, which reduces the rate."""

SHAPES: dict[str, Shape] = {
    "linear": _shape(library.linear),
    "cosine": _shape(library.cosine),
    "cosine_with_restarts": _shape(library.cosine_with_restarts),
    "polynomial": _shape(library.polynomial),
    "constant": _shape(library.constant),
    "constant_with_warmup": _shape(library.constant),
    "inverse_sqrt": _shape(library.inverse_sqrt),
    "reduce_lr_on_plateau": Shape(library.constant, PLATEAU),
    "cosine_with_min_lr": _shape(library.cosine_with_min_lr),
    "cosine_warmup_with_min_lr": _shape(library.cosine_warmup_with_min_lr, warms_up=True),
    "warmup_stable_decay": _shape(library.warmup_stable_decay, "num_decay_steps", warms_up=True),
    "step": _shape(step_decay, "step_size"),
    "multi_step": _shape(multi_step, "milestones"),
    "exponential": _shape(exponential, "gamma"),
    "cyclic": _shape(cyclic, "base_lr", warms_up=True),
    "one_cycle": _shape(one_cycle, warms_up=True),
    "range_test": _shape(range_test, "start_lr", warms_up=True),
}
"""Shapes by `train.lr_scheduler_type`."""

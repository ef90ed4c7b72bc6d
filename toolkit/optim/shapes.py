"""Shapes of the learning rate: the factor of the peak rate as a function of the step alone.

A resumed run can therefore seek to any step. The schedules of torch compute each rate from that of the previous step;
here they are functions of the step, too.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import Field

from toolkit.optim import transformers_shapes
from toolkit.optim.span import CountOrZero, Decay, Floor, Length, Momentum, Span


class Shape(NamedTuple):
    """A shape of the learning rate.

    Args:
        factor: a function of step (from 0), span and arguments.
        arguments: types of the arguments that `train.lr_scheduler_kwargs` may have, those of the momentum included.
        required: arguments without a default.
        warms_up: whether it has its own warm-up instead of a linear one.
        momentum: a function of step, span and arguments: the momentum beside the rate, if it can be cycled.
    """

    factor: Callable[..., float]
    arguments: Mapping[str, Any]
    required: tuple[str, ...] = ()
    warms_up: bool = False
    momentum: Callable[..., float] | None = None


def impossible(name: str, arguments: Mapping[str, Any], peak: float) -> str | None:
    """Returns what is wrong with the combination of a shape's arguments, or None.

    Args:
        name: the shape, as in `train.lr_scheduler_type`.
        arguments: its arguments, each valid by itself.
        peak: the peak rate.
    """
    known = SHAPES[name].arguments
    if problem := _unused(given=arguments, momentum=SHAPES[name].momentum):
        return problem
    if arguments.get("mode") == "exp_range" and "gamma" not in arguments:
        return "exp_range needs gamma, the factor of the amplitude in each step, for instance 0.9999"
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


def _unused(given: Mapping[str, Any], momentum: Callable[..., float] | None) -> str | None:
    """Returns which arguments of a shape have no effect beside the others, or None."""
    if "t_mult" in given and given.get("num_cycles", 1) == 1:
        return "t_mult has no effect on a single cycle; set num_cycles above 1"
    if momentum is None:
        return None
    if "gamma" in given and given.get("mode") != "exp_range":
        return "gamma has no effect without mode: exp_range"
    limits = [name for name in ("base_momentum", "max_momentum") if name in given]
    if limits and not given.get("cycle_momentum"):
        return f"{limits[0]} has no effect without cycle_momentum: true"
    low, high = (given.get(name, default_of(momentum, name)) for name in ("base_momentum", "max_momentum"))
    return f"base_momentum ({low:g}) is above max_momentum ({high:g})" if low > high else None


def default_of(function: Callable[..., float], argument: str) -> Any:
    """Returns the default of a keyword argument."""
    return inspect.signature(function).parameters[argument].default


def step_decay(step: int, span: Span, *, step_size: Length, gamma: Decay = 0.1) -> float:
    """Multiplies the rate by `gamma` every `step_size` steps after the warm-up."""
    return gamma ** ((step - span.warmup) // step_size)


def multi_step(step: int, span: Span, *, milestones: list[Length], gamma: Decay = 0.1) -> float:
    """Multiplies the rate by `gamma` at each milestone, counted in steps after the warm-up."""
    return gamma ** bisect_right(sorted(milestones), step - span.warmup)


def exponential(step: int, span: Span, *, gamma: Decay) -> float:
    """Multiplies the rate by `gamma` in every step after the warm-up."""
    return gamma ** (step - span.warmup)


Mode = Literal["triangular", "triangular2", "exp_range"]


def cyclic(
    step: int,
    span: Span,
    *,
    base_lr: Floor,
    step_size_up: Length = 2000,
    step_size_down: Length | None = None,
    mode: Mode = "triangular",
    gamma: Decay = 1.0,
) -> float:
    """Cycles linearly between `base_lr` and the peak (Smith 2017, arXiv 1506.01186).

    In `triangular2`, each cycle has half the amplitude of the one before; in `exp_range`, `gamma` multiplies the
    amplitude in every step.
    """
    low = base_lr / span.peak if span.peak else 0.0
    return low + (1.0 - low) * _height(step, step_size_up, step_size_down, mode, gamma)


def cyclic_momentum(
    step: int,
    span: Span,
    *,
    base_momentum: Momentum = 0.8,
    max_momentum: Momentum = 0.9,
    step_size_up: Length = 2000,
    step_size_down: Length | None = None,
    mode: Mode = "triangular",
    gamma: Decay = 1.0,
) -> float:
    """The momentum of `cyclic`: lowest where the rate is highest (Smith 2018, arXiv 1803.09820)."""
    return max_momentum - (max_momentum - base_momentum) * _height(step, step_size_up, step_size_down, mode, gamma)


def _height(step: int, up: int, down: int | None, mode: Mode, gamma: float) -> float:
    """Returns the height in the triangles of `cyclic`, from 0 to 1."""
    length = up + (down or up)
    cycle, position = divmod(step, length)
    rise = position / up if position <= up else (length - position) / (length - up)
    return rise * {"triangular": 1.0, "triangular2": 0.5**cycle, "exp_range": gamma**step}[mode]


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
    corners = (first, 1.0, first, last) if three_phase else (first, 1.0, last)
    return _along(step, span, corners, pct_start, anneal_strategy)


def one_cycle_momentum(
    step: int,
    span: Span,
    *,
    base_momentum: Momentum = 0.85,
    max_momentum: Momentum = 0.95,
    pct_start: Annotated[float, Field(gt=0, lt=1)] = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    three_phase: bool = False,
) -> float:
    """The momentum of `one_cycle`: lowest where the rate is highest (Smith 2018, arXiv 1803.09820)."""
    corners = (max_momentum, base_momentum, max_momentum) + (max_momentum,) * three_phase
    return _along(step, span, corners, pct_start, anneal_strategy)


def _along(step: int, span: Span, corners: Sequence[float], pct_start: float, anneal_strategy: str) -> float:
    """Returns the value at a step of a curve through the corners of `one_cycle`: two or three phases."""
    top, end = pct_start * span.total - 1, span.total - 1
    start = 0.0
    for until, (low, high) in zip((top, *([2 * top] if len(corners) > 3 else []), end), pairwise(corners), strict=True):
        if step <= until:
            part = (step - start) / (until - start) if until > start else 1.0
            bent = 0.5 * (1.0 - math.cos(math.pi * part)) if anneal_strategy == "cos" else part
            return low + (high - low) * bent
        start = max(0.0, until)
    return corners[-1]


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


def _shape(
    factor: Callable[..., float],
    *required: str,
    warms_up: bool = False,
    momentum: Callable[..., float] | None = None,
) -> Shape:
    """Returns a shape whose arguments are those of its functions."""
    hints = get_type_hints(factor, include_extras=True)
    if momentum is not None:
        hints |= {"cycle_momentum": bool} | get_type_hints(momentum, include_extras=True)
    arguments = {name: hint for name, hint in hints.items() if name not in ("step", "span", "return")}
    return Shape(factor, arguments, required, warms_up, momentum)


def bound(function: Callable[..., float], span: Span, given: Mapping[str, Any]) -> Callable[[int], float]:
    """Returns a function of a shape as one of the step alone, with those of the arguments that it takes."""
    taken = inspect.signature(function).parameters
    return partial(function, span=span, **{name: value for name, value in given.items() if name in taken})


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
    "linear": _shape(transformers_shapes.linear),
    "cosine": _shape(transformers_shapes.cosine),
    "cosine_with_restarts": _shape(transformers_shapes.cosine_with_restarts),
    "polynomial": _shape(transformers_shapes.polynomial),
    "constant": _shape(transformers_shapes.constant),
    "constant_with_warmup": _shape(transformers_shapes.constant),
    "inverse_sqrt": _shape(transformers_shapes.inverse_sqrt),
    "reduce_lr_on_plateau": Shape(transformers_shapes.constant, PLATEAU),
    "cosine_with_min_lr": _shape(transformers_shapes.cosine_with_min_lr),
    "cosine_warmup_with_min_lr": _shape(transformers_shapes.cosine_warmup_with_min_lr, warms_up=True),
    "warmup_stable_decay": _shape(transformers_shapes.warmup_stable_decay, "num_decay_steps", warms_up=True),
    "step": _shape(step_decay, "step_size"),
    "multi_step": _shape(multi_step, "milestones"),
    "exponential": _shape(exponential, "gamma"),
    "cyclic": _shape(cyclic, "base_lr", warms_up=True, momentum=cyclic_momentum),
    "one_cycle": _shape(one_cycle, warms_up=True, momentum=one_cycle_momentum),
    "range_test": _shape(range_test, "start_lr", warms_up=True),
}
"""Shapes by `train.lr_scheduler_type`."""

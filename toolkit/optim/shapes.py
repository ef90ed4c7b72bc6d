"""Shapes of the learning rate: the factor of the peak rate as a function of the step alone.

A resumed run can therefore seek to any step. The schedules of torch compute each rate from that of the previous step;
here they are functions of the step, too.
"""

from __future__ import annotations

import inspect
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from toolkit.config.fields import EPOCHS


def _or_epochs(value: Any, steps: ValidatorFunctionWrapHandler) -> Any:
    """Accepts a length in epochs beside a number of steps."""
    if not isinstance(value, str):
        return steps(value)
    if re.match(EPOCHS, value) is None:
        raise ValueError("Input should be a number of steps, or of epochs such as '2 epochs'")
    return value


Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=1), WrapValidator(_or_epochs)]
"""A number of steps; in the YAML also of epochs, which `toolkit.optim.schedules` turns into steps."""
LengthOrZero = Annotated[int, Field(ge=0), WrapValidator(_or_epochs)]
CountOrZero = Annotated[int, Field(ge=0)]
Cycles = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, le=1)]
Floor = Annotated[float, Field(ge=0)]
Growth = Annotated[float, Field(ge=1, le=10)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Curve = Literal["linear", "cosine", "1-sqrt"]


class Span(NamedTuple):
    """The length of a schedule: the number of warm-up steps, the total number of steps, and the peak rate."""

    warmup: int
    total: int
    peak: float


def _progress(step: int, span: Span) -> float:
    return (step - span.warmup) / max(1, span.total - span.warmup)


def _cosine_wave(progress: float, num_cycles: float, low: float) -> float:
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress)) * (1.0 - low) + low)


def _low(span: Span, min_lr: float | None, min_lr_rate: float | None) -> float:
    """Returns the lowest factor, given as a rate (`min_lr`) or as a factor (`min_lr_rate`)."""
    if min_lr is None:
        return min_lr_rate or 0.0
    return min_lr / span.peak if span.peak else 0.0


def constant(step: int, span: Span) -> float:
    """Stays at the peak rate."""
    return 1.0


def linear(step: int, span: Span) -> float:
    """Falls linearly to 0."""
    return max(0.0, (span.total - step) / max(1, span.total - span.warmup))


def cosine(step: int, span: Span, *, num_cycles: Cycles = 0.5) -> float:
    """Falls along half a cosine to 0 (Loshchilov and Hutter 2017, arXiv 1608.03983)."""
    return _cosine_wave(_progress(step, span), num_cycles, 0.0)


def cosine_with_restarts(step: int, span: Span, *, num_cycles: Count = 1, t_mult: Growth = 1.0) -> float:
    """Falls along half a cosine and restarts at the peak, `num_cycles` times in all (SGDR, arXiv 1608.03983).

    Each cycle is `t_mult` times as long as the one before; transformers has cycles of one length only.
    """
    progress = _progress(step, span)
    if progress >= 1:
        return 0.0
    if t_mult == 1:
        done = (num_cycles * progress) % 1.0
    elif step >= span.total:  # a warm-up as long as the run
        return 0.0
    else:
        ends = restarts(span, num_cycles, t_mult)
        begin, end = next(pair for pair in pairwise([float(span.warmup), *ends]) if step < pair[1])
        done = (step - begin) / (end - begin)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))


def restarts(span: Span, num_cycles: int, t_mult: float) -> list[float]:
    """Returns the end of each cycle of `cosine_with_restarts`, in steps, which may be between two steps."""
    length = span.total - span.warmup
    if t_mult == 1:
        return [span.warmup + k * length / num_cycles for k in range(1, num_cycles + 1)]
    # The lengths are a geometric series; whole factors give whole numbers without rounding.
    growth = int(t_mult) if t_mult == int(t_mult) else t_mult
    ends = [span.warmup + length * (growth**k - 1) / (growth**num_cycles - 1) for k in range(1, num_cycles)]
    return [*ends, float(span.total)]


def cosine_with_min_lr(
    step: int, span: Span, *, num_cycles: Cycles = 0.5, min_lr: Floor | None = None, min_lr_rate: Share | None = None
) -> float:
    """Falls along half a cosine to a rate above 0."""
    return _cosine_wave(_progress(step, span), num_cycles, _low(span, min_lr, min_lr_rate))


def cosine_warmup_with_min_lr(
    step: int,
    span: Span,
    *,
    num_cycles: Cycles = 0.5,
    min_lr: Floor | None = None,
    min_lr_rate: Share | None = None,
    warmup_lr_rate: Share | None = None,
) -> float:
    """As `cosine_with_min_lr`, one step ahead, with a warm-up that starts above 0."""
    low = _low(span, min_lr, min_lr_rate)
    if step >= span.warmup:
        return _cosine_wave(_progress(step + 1, span), num_cycles, low)
    if warmup_lr_rate is None:
        return (step + 1) / span.warmup
    return warmup_lr_rate + (1.0 - warmup_lr_rate) * step / max(1, span.warmup - 1)


def polynomial(step: int, span: Span, *, lr_end: Floor = 1e-7, power: Cycles = 1.0) -> float:
    """Falls to `lr_end` as a power of the remaining fraction of steps."""
    low = lr_end / span.peak if span.peak else 0.0
    return (1.0 - low) * max(0.0, 1.0 - _progress(step, span)) ** power + low


def inverse_sqrt(step: int, span: Span, *, timescale: Length | None = None) -> float:
    """Falls with the inverse square root of the step (Vaswani et al. 2017, arXiv 1706.03762)."""
    scale = timescale or span.warmup or 10_000
    return 1.0 / math.sqrt((step + scale - span.warmup) / scale)


def _curve(kind: str, progress: float, num_cycles: float) -> float:
    """Returns the factor of a decay, from 1 at its start to 0 at its end."""
    if kind == "linear":
        return 1.0 - progress
    return 1.0 - math.sqrt(progress) if kind == "1-sqrt" else _cosine_wave(progress, num_cycles, 0.0)


def warmup_stable_decay(
    step: int,
    span: Span,
    *,
    num_decay_steps: Length,
    num_stable_steps: LengthOrZero | None = None,
    warmup_type: Curve = "linear",
    decay_type: Curve = "cosine",
    min_lr_ratio: Share = 0.0,
    num_cycles: Cycles = 0.5,
) -> float:
    """Warms up, stays at the peak, and decays over the last steps (WSD, arXiv 2404.06395)."""
    if step < span.warmup:
        # The curves of the decay, reversed.
        risen = _curve(warmup_type, 1.0 - step / span.warmup, 0.5)
        return max(0.0, risen * (1.0 - min_lr_ratio) + min_lr_ratio)
    stable = span.total - span.warmup - num_decay_steps if num_stable_steps is None else num_stable_steps
    done = step - span.warmup - stable
    if done < 0:
        return 1.0
    if done >= num_decay_steps:
        return min_lr_ratio
    return max(0.0, _curve(decay_type, done / num_decay_steps, num_cycles) * (1.0 - min_lr_ratio) + min_lr_ratio)


class Shape(NamedTuple):
    """A shape of the learning rate."""

    factor: Callable[..., float]  # a function of step (from 0), span and arguments
    arguments: Mapping[str, Any]  # types by name in `train.lr_scheduler_kwargs`, also of the momentum
    required: tuple[str, ...] = ()  # arguments without a default
    warms_up: bool = False  # whether it has its own warm-up instead of a linear one
    momentum: Callable[..., float] | None = None  # likewise, if the momentum can be cycled


def impossible(name: str, arguments: Mapping[str, Any], peak: float) -> str | None:
    """Returns what is wrong with the combination of a shape's arguments, each valid by itself, or None."""
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
    factor: Callable[..., float], *required: str, warms_up: bool = False, momentum: Callable[..., float] | None = None
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
    "linear": _shape(linear),
    "cosine": _shape(cosine),
    "cosine_with_restarts": _shape(cosine_with_restarts),
    "polynomial": _shape(polynomial),
    "constant": _shape(constant),
    "constant_with_warmup": _shape(constant),
    "inverse_sqrt": _shape(inverse_sqrt),
    "reduce_lr_on_plateau": Shape(constant, PLATEAU),
    "cosine_with_min_lr": _shape(cosine_with_min_lr),
    "cosine_warmup_with_min_lr": _shape(cosine_warmup_with_min_lr, warms_up=True),
    "warmup_stable_decay": _shape(warmup_stable_decay, "num_decay_steps", warms_up=True),
    "step": _shape(step_decay, "step_size"),
    "multi_step": _shape(multi_step, "milestones"),
    "exponential": _shape(exponential, "gamma"),
    "cyclic": _shape(cyclic, "base_lr", warms_up=True, momentum=cyclic_momentum),
    "one_cycle": _shape(one_cycle, warms_up=True, momentum=one_cycle_momentum),
    "range_test": _shape(range_test, "start_lr", warms_up=True),
}
"""Shapes by `train.lr_scheduler_type`."""

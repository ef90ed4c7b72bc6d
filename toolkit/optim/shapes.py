"""Shapes of the learning rate: each a factor of the peak rate as a function of the step, and of nothing before it.

Names, arguments and numbers are those of `transformers.optimization` where it has the shape, of
`torch.optim.lr_scheduler` otherwise. A shape that has no rise of its own follows a linear warm-up.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Cycles = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, le=1)]
Floor = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Curve = Literal["linear", "cosine", "1-sqrt"]


class Span(NamedTuple):
    """What a shape is laid over: steps of warm-up, steps in all, and the peak rate."""

    warmup: int
    total: int
    peak: float


def _progress(step: int, span: Span) -> float:
    return (step - span.warmup) / max(1, span.total - span.warmup)


def _cosine_wave(progress: float, num_cycles: float, low: float) -> float:
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress)) * (1.0 - low) + low)


def _low(span: Span, min_lr: float | None, min_lr_rate: float | None) -> float:
    """Returns the lowest factor, given as a rate or as a factor."""
    if (min_lr is None) == (min_lr_rate is None):
        raise ValueError("give one of min_lr and min_lr_rate")
    if min_lr is None:
        return min_lr_rate or 0.0
    if min_lr > span.peak:
        raise ValueError(f"min_lr ({min_lr:g}) is above train.learning_rate ({span.peak:g})")
    return min_lr / span.peak if span.peak else 0.0


def constant(step: int, span: Span) -> float:
    """The peak rate."""
    return 1.0


def linear(step: int, span: Span) -> float:
    """Down to 0 in a line."""
    return max(0.0, (span.total - step) / max(1, span.total - span.warmup))


def cosine(step: int, span: Span, *, num_cycles: Cycles = 0.5) -> float:
    """Half a cosine from 1 to 0 (Loshchilov and Hutter 2017, arXiv 1608.03983)."""
    return _cosine_wave(_progress(step, span), num_cycles, 0.0)


def cosine_with_restarts(step: int, span: Span, *, num_cycles: Count = 1) -> float:
    """Half cosines, each from the peak again (SGDR, arXiv 1608.03983)."""
    progress = _progress(step, span)
    return 0.0 if progress >= 1 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((num_cycles * progress) % 1.0))))


def cosine_with_min_lr(
    step: int, span: Span, *, num_cycles: Cycles = 0.5, min_lr: Floor | None = None, min_lr_rate: Share | None = None
) -> float:
    """Half a cosine that ends above 0."""
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
    """The same one step ahead, with a warm-up that starts above 0."""
    low = _low(span, min_lr, min_lr_rate)
    if step >= span.warmup:
        return _cosine_wave(_progress(step + 1, span), num_cycles, low)
    if warmup_lr_rate is None:
        return (step + 1) / span.warmup
    return warmup_lr_rate + (1.0 - warmup_lr_rate) * step / max(1, span.warmup - 1)


def polynomial(step: int, span: Span, *, lr_end: Floor = 1e-7, power: Cycles = 1.0) -> float:
    """Down to `lr_end` as a power of the remaining part."""
    if lr_end >= span.peak > 0:
        raise ValueError(f"lr_end ({lr_end:g}) is not below train.learning_rate ({span.peak:g})")
    low = lr_end / span.peak if span.peak else 0.0
    return (1.0 - low) * max(0.0, 1.0 - _progress(step, span)) ** power + low


def inverse_sqrt(step: int, span: Span, *, timescale: Count | None = None) -> float:
    """Down with the root of the step (Vaswani et al. 2017)."""
    scale = timescale or span.warmup or 10_000
    return 1.0 / math.sqrt((step + scale - span.warmup) / scale)


def _curve(kind: str, progress: float, num_cycles: float) -> float:
    """From 1 at the start of a decay to 0 at its end."""
    if kind == "linear":
        return 1.0 - progress
    return 1.0 - math.sqrt(progress) if kind == "1-sqrt" else _cosine_wave(progress, num_cycles, 0.0)


def warmup_stable_decay(
    step: int,
    span: Span,
    *,
    num_decay_steps: Count,
    num_stable_steps: Annotated[int, Field(ge=0)] | None = None,
    warmup_type: Curve = "linear",
    decay_type: Curve = "cosine",
    min_lr_ratio: Share = 0.0,
    num_cycles: Cycles = 0.5,
) -> float:
    """Up, level, and down over the last steps (WSD, arXiv 2404.06395)."""
    if step < span.warmup:
        # Each curve is the decay's, backwards.
        risen = _curve(warmup_type, 1.0 - step / span.warmup, 0.5)
        return max(0.0, risen * (1.0 - min_lr_ratio) + min_lr_ratio)
    stable = span.total - span.warmup - num_decay_steps if num_stable_steps is None else num_stable_steps
    done = step - span.warmup - stable
    if done < 0:
        return 1.0
    if done >= num_decay_steps:
        return min_lr_ratio
    return max(0.0, _curve(decay_type, done / num_decay_steps, num_cycles) * (1.0 - min_lr_ratio) + min_lr_ratio)


def step_decay(step: int, span: Span, *, step_size: Count, gamma: Decay = 0.1) -> float:
    """Times `gamma` every `step_size` steps."""
    return gamma ** ((step - span.warmup) // step_size)


def multi_step(step: int, span: Span, *, milestones: list[Count], gamma: Decay = 0.1) -> float:
    """Times `gamma` at each milestone, in steps after the warm-up."""
    return gamma ** bisect_right(sorted(milestones), step - span.warmup)


def exponential(step: int, span: Span, *, gamma: Decay) -> float:
    """Times `gamma` every step."""
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
    """Triangles between `base_lr` and the peak, in `triangular2` each half as high (Smith 2017, arXiv 1506.01186)."""
    if base_lr > span.peak:
        raise ValueError(f"base_lr ({base_lr:g}) is above train.learning_rate ({span.peak:g})")
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
    """From low to the peak and far down, once (Smith and Topin 2018, arXiv 1708.07120)."""
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


SHAPES: dict[str, Callable[..., float]] = {
    "linear": linear,
    "cosine": cosine,
    "cosine_with_restarts": cosine_with_restarts,
    "polynomial": polynomial,
    "constant": constant,
    "constant_with_warmup": constant,
    "inverse_sqrt": inverse_sqrt,
    "reduce_lr_on_plateau": constant,
    "cosine_with_min_lr": cosine_with_min_lr,
    "cosine_warmup_with_min_lr": cosine_warmup_with_min_lr,
    "warmup_stable_decay": warmup_stable_decay,
    "step": step_decay,
    "multi_step": multi_step,
    "exponential": exponential,
    "cyclic": cyclic,
    "one_cycle": one_cycle,
}
"""By `train.lr_scheduler_type`. The reductions of `reduce_lr_on_plateau` are made by the callback `plateau`."""

OWN_RISE = frozenset({"cosine_warmup_with_min_lr", "warmup_stable_decay", "cyclic", "one_cycle"})
"""Shapes that say themselves how the rate rises."""


_Count = Annotated[int, Field(ge=0)]


_Floor = Annotated[float, Field(ge=0)]


ARGUMENTS: dict[str, Any] = {
    "factor": Annotated[float, Field(gt=0, lt=1)],
    "patience": _Count,
    "threshold": _Floor,
    "threshold_mode": Literal["rel", "abs"],
    "cooldown": _Count,
    "min_lr": _Floor,
    "eps": _Floor,
}
"""What the YAML can give to `torch.optim.lr_scheduler.ReduceLROnPlateau`; its mode is the metric's own."""

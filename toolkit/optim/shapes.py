"""Shapes of the learning rate: each a factor of the peak rate as a function of the step, and of nothing before it.

Those of transformers are taken from there: they are `LambdaLR`s, whose functions depend on the step alone, so that a
resumed run can seek to any step. Those of torch are computed from the rate of the step before; they are written here as
functions. The arguments of both are declared here, because settings are checked before transformers is loaded, which
takes longer (2 to 6 s) than all the checks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
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


class Shape(NamedTuple):
    """A shape of the learning rate.

    Args:
        factor: its name in transformers, or a function of step (from 0), span and arguments.
        arguments: what `train.lr_scheduler_kwargs` may hold, with types.
        required: those that have no default.
        warms_up: whether a function has a rise of its own, instead of following a linear warm-up.
    """

    factor: str | Callable[..., float]
    arguments: Mapping[str, Any]
    required: tuple[str, ...] = ()
    warms_up: bool = False


def library_factor(name: str, span: Span, arguments: Mapping[str, Any]) -> Callable[[int], float]:
    """Returns the factor of a schedule of transformers, warm-up included, as a function of the step (from 0).

    Args:
        name: its name there.
        span: steps and peak rate.
        arguments: the schedule's own.

    Raises:
        ValueError: if transformers refuses the arguments.
    """
    import torch
    from transformers.optimization import get_scheduler

    # The schedule reads the peak rate from its optimizer. A rate of 0 stays 0 whatever it is multiplied by.
    stand_in = torch.optim.SGD([torch.zeros(1)], lr=span.peak or 1.0)
    # `polynomial` divides by the steps after the warm-up; with none the run ends before the factor matters.
    total = max(span.total, span.warmup + 1)
    steps = None if arguments.get("num_stable_steps") is not None else total  # one of them, or it warns
    schedule = get_scheduler(name, stand_in, span.warmup, steps, dict(arguments))
    factor: Callable[[int], float] = schedule.lr_lambdas[0]
    return factor


def impossible(name: str, arguments: Mapping[str, Any], peak: float) -> str | None:
    """Returns what is wrong with the lowest rate that the arguments of a shape ask for, or None.

    Args:
        name: the shape, as in `train.lr_scheduler_type`.
        arguments: valid ones, each by itself.
        peak: the peak rate.
    """
    known = SHAPES[name].arguments
    if "min_lr_rate" in known and (arguments.get("min_lr") is None) == (arguments.get("min_lr_rate") is None):
        return "give one of min_lr and min_lr_rate"
    for lowest in ("min_lr", "base_lr"):
        if lowest in known and (value := arguments.get(lowest)) is not None and value > peak:
            return f"{lowest} ({value:g}) is above train.learning_rate ({peak:g})"
    if "lr_end" in known and (value := arguments.get("lr_end", 1e-7)) >= (peak or 1.0):
        return f"lr_end ({value:g}) is not below train.learning_rate ({peak:g})"
    return None


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


def _written_here(factor: Callable[..., float], *required: str, warms_up: bool = False) -> Shape:
    """Returns a shape whose arguments are those of its function."""
    hints = get_type_hints(factor, include_extras=True)
    arguments = {name: hint for name, hint in hints.items() if name not in ("step", "span", "return")}
    return Shape(factor, arguments, required, warms_up)


SHAPES: dict[str, Shape] = {
    "linear": Shape("linear", {}),
    "cosine": Shape("cosine", {"num_cycles": Cycles}),
    "cosine_with_restarts": Shape("cosine_with_restarts", {"num_cycles": Count}),
    "polynomial": Shape("polynomial", {"lr_end": Floor, "power": Cycles}),
    "constant": Shape("constant", {}),
    "constant_with_warmup": Shape("constant_with_warmup", {}),
    "inverse_sqrt": Shape("inverse_sqrt", {"timescale": Count | None}),
    # The reductions are made by the callback `plateau`.
    "reduce_lr_on_plateau": Shape(
        "constant_with_warmup",
        {
            "factor": Annotated[float, Field(gt=0, lt=1)],
            "patience": CountOrZero,
            "threshold": Floor,
            "threshold_mode": Literal["rel", "abs"],
            "cooldown": CountOrZero,
            "min_lr": Floor,
            "eps": Floor,
        },
    ),
    "cosine_with_min_lr": Shape(
        "cosine_with_min_lr",
        {"num_cycles": Cycles, "min_lr": Floor | None, "min_lr_rate": Share | None},
    ),
    "cosine_warmup_with_min_lr": Shape(
        "cosine_warmup_with_min_lr",
        {"num_cycles": Cycles, "min_lr": Floor | None, "min_lr_rate": Share | None, "warmup_lr_rate": Share | None},
    ),
    "warmup_stable_decay": Shape(
        "warmup_stable_decay",
        {
            "num_decay_steps": Count,
            "num_stable_steps": CountOrZero | None,
            "warmup_type": Curve,
            "decay_type": Curve,
            "min_lr_ratio": Share,
            "num_cycles": Cycles,
        },
        required=("num_decay_steps",),
    ),
    "step": _written_here(step_decay, "step_size"),
    "multi_step": _written_here(multi_step, "milestones"),
    "exponential": _written_here(exponential, "gamma"),
    "cyclic": _written_here(cyclic, "base_lr", warms_up=True),
    "one_cycle": _written_here(one_cycle, warms_up=True),
}
"""By `train.lr_scheduler_type`."""

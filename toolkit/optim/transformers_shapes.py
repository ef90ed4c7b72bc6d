"""The learning-rate schedules of transformers, as functions of the step (from 0) and the span alone.

Names, arguments and values are those of `transformers.optimization`; a test compares them. They are reimplemented
because importing that module also imports peft and bitsandbytes: 1.7 s of CPU time in each run that needs neither
(torch 2.13, transformers 5.23, one core).
"""

from __future__ import annotations

import math
from itertools import pairwise

from toolkit.optim.span import Count, Curve, Cycles, Floor, Growth, Length, LengthOrZero, Share, Span


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

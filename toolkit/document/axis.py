"""Axes of charts: their range, the position of values, and tick labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Axis:
    """An axis, which maps values to pixels.

    Args:
        low: value at its start.
        high: value at its end.
        start: pixel of `low`.
        end: pixel of `high`.
        ticks: values and labels of the ticks.
        log: whether the axis is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Returns the pixels, `[N]`, of values, `[N]`; NaN for missing values and those without a logarithm."""
        low, high = self.low, self.high
        if self.log:
            values = np.log10(np.where(values > 0, values, np.nan))
            low, high = math.log10(low), math.log10(high)
        return self.start + (values - low) / (high - low) * (self.end - self.start)


def axis(
    values: np.ndarray, start: float, end: float, *, log: bool = False, zero: bool = False, whole: bool = False
) -> Axis:
    """Returns an axis that covers all finite values.

    Args:
        values: `[N]` values; values that are not finite are ignored.
        start: pixel of its start.
        end: pixel of its end.
        log: whether it is logarithmic; ignored if no value is above 0.
        zero: whether it begins at 0.
        whole: whether values are counts: ticks are integers, and there is no margin.
    """
    finite = values[np.isfinite(values)]
    if log and (positive := finite[finite > 0]).size:
        low, high = float(positive.min()), float(positive.max())
        low, high = (low / 1.5, high * 1.5) if high < low * 1.5 else (low / 1.05, high * 1.05)
        return Axis(low, high, start, end, _log_ticks(low, high), log=True)
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high == 0:
        high = 1.0
    elif low == high:
        room = 1.0 if whole else abs(low) / 10
        low, high = low - room, high + room
    elif not whole:
        room = (high - low) / 20
        low, high = low if zero and not low else low - room, high + room
    return Axis(low, high, start, end, _ticks(low, high, whole))


def _ticks(low: float, high: float, whole: bool, most: int = 6) -> list[tuple[float, str]]:
    """Returns ticks at multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    places = [number * step for number in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)]
    return [(place, number_text(place, step)) for place in places]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    every = max(1, (last - first) // 6)
    places = [f * 10.0**power for power in range(first, last + 1, every) for f in factors]
    return [(place, number_text(place, place)) for place in places if low <= place <= high]


def number_text(value: float, step: float) -> str:
    """Returns the label of a tick.

    Args:
        value: its value.
        step: distance to the next tick, which determines the number of digits.
    """
    value = 0.0 if abs(value) < step * 1e-6 else value
    largest = max(abs(value), step)
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= unit * (10 if sign == "k" else 1):
            return f"{value / unit:.{_decimals(step / unit)}f}{sign}" if value else "0"
    if step < 1e-3:
        if not value:
            return "0"
        power = math.floor(math.log10(abs(value)) + 1e-9)
        return f"{float(f'{value / 10.0**power:.{_decimals(step / 10.0**power)}f}'):g}e{power}"
    return f"{value:.{_decimals(step)}f}"


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))

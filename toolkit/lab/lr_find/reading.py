"""Reads the curve of a learning-rate range test (Smith 2017, arXiv 1506.01186): where the loss falls and diverges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDTH = 40
"""Losses are smoothed by a Gaussian whose standard deviation is one part in this many of the steps."""
BEGUN = 0.1
"""The decline has begun when the loss has fallen by this part of its whole fall; the loss rises where it is above its
lowest value by this part of it."""
LEAST_FALL = 0.01
"""Smallest fall, as a part of the first loss, that is a decline."""
BELOW_DIVERGENCE = {"plain": 4.0, "high": 3.0}
"""By what factor a rate stays below that of divergence: for schedules that stay near it, and those that visit it."""
WITHOUT_DECLINE = 10.0
"""The same factor where the loss does not fall clearly."""


@dataclass(frozen=True)
class Reading:
    """What a curve says.

    Args:
        smoothed: the smoothed losses, one per rate.
        decline: rate at which the loss begins to fall; None if it does not fall.
        steepest: rate at which it falls fastest; None if it does not fall.
        lowest: rate of the lowest smoothed loss.
        divergence: rate from which the loss rises; None if it does not rise.
    """

    smoothed: Sequence[float]
    decline: float | None
    steepest: float | None
    lowest: float
    divergence: float | None

    @property
    def plain(self) -> float | None:
        """The peak rate for a schedule that decays from it, or stays at it; None if the curve is flat."""
        return self._below("plain", self.steepest)

    @property
    def high(self) -> float | None:
        """The peak rate for a schedule that visits its peak only for a time, `one_cycle` or `cyclic`; None as above."""
        return self._below("high", self.lowest)

    def _below(self, kind: str, otherwise: float | None) -> float | None:
        if self.steepest is None or otherwise is None:
            return None if self.divergence is None else self.divergence / WITHOUT_DECLINE
        limit = np.inf if self.divergence is None else self.divergence / BELOW_DIVERGENCE[kind]
        return float(min(otherwise, limit))


def read(rates: Sequence[float], losses: Sequence[float], blew_up: bool = False) -> Reading:
    """Reads a curve.

    Args:
        rates: `[N]` rates, rising, at least 3.
        losses: `[N]` losses; NaN for a step without items.
        blew_up: whether the test ended because the loss diverged or was not finite.
    """
    raw = np.asarray(losses, dtype=float)
    smoothed = smooth(raw)
    first, low = smoothed[0], int(np.argmin(smoothed))
    fall, noise = first - smoothed[low], _noise(raw, low)
    divergence = _divergence(rates, raw, blew_up)
    if low == 0 or fall < max(LEAST_FALL * abs(first), noise):
        return Reading(smoothed.tolist(), None, None, float(rates[low]), divergence)
    begun = int(np.flatnonzero(smoothed[: low + 1] < first - BEGUN * fall)[0])
    slope = np.gradient(smoothed, np.log(rates))[: low + 1]
    steepest = int(np.argmin(slope))
    return Reading(smoothed.tolist(), float(rates[begun]), float(rates[steepest]), float(rates[low]), divergence)


def _divergence(rates: Sequence[float], losses: np.ndarray, blew_up: bool) -> float | None:
    """Returns the rate from which the loss rises, or None.

    Errors grow by a factor per step when they diverge, so their logarithms are smoothed: the lowest is then where they
    begin to grow, not where their size first shows. With noise, the loss stays near its lowest value for a while, and
    the last such rate is taken.
    """
    logs = np.log(np.maximum(losses, np.finfo(float).tiny))
    smoothed = smooth(logs)
    low = int(np.argmin(smoothed))
    after, noise = smoothed[low:], _noise(logs, low)
    if not blew_up and after.max() - smoothed[low] <= max(BEGUN, 2 * noise):
        return None
    return float(rates[low + int(np.flatnonzero(after <= smoothed[low] + noise)[-1])])


def smooth(losses: np.ndarray) -> np.ndarray:
    """Returns the losses averaged with their neighbours, `[N]`; NaN and infinite ones do not count.

    Unlike a running mean, this does not shift the curve to higher rates.
    """
    places = np.arange(len(losses))
    spread = max(0.5, len(losses) / WIDTH)
    weights = np.exp(-0.5 * ((places[:, None] - places) / spread) ** 2) * np.isfinite(losses)
    return weights @ np.nan_to_num(losses, posinf=0.0, neginf=0.0) / weights.sum(1)


def _noise(losses: np.ndarray, place: int) -> float:
    """Returns the standard deviation of the noise of losses near a place.

    It is that of their third differences, to which a smooth curve contributes little, and a median, which jumps do not
    change.
    """
    reach = max(5, len(losses) // 10)
    near = losses[max(0, place - reach) : place + reach + 1]
    steps = np.abs(np.diff(near[np.isfinite(near)], n=3))
    return float(np.median(steps) / (0.6745 * np.sqrt(20))) if len(steps) else 0.0

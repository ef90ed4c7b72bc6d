"""Confidence intervals: by formula, from draws, and by drawing examples with replacement (the bootstrap)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

SEED, DRAWS, FEWEST_DRAWS, MOST_NUMBERS = 20, 1000, 200, 20_000_000
"""A bootstrap has `DRAWS` samples; of large sets fewer, so that at most `MOST_NUMBERS` are drawn, if possible."""
FEWEST_EXAMPLES = 10
"""Smallest set to bootstrap: intervals of smaller ones would be far too narrow."""
Z = 1.959963984540054
"""Quantile of the normal distribution for 95 %."""
ENDS = (0.025, 0.975)


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


def wilson(share: float, count: int) -> Interval:
    """Returns Wilson's interval of a share of `count` observations (Wilson 1927, JASA 22), within 0 and 1."""
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return Interval(max(0.0, round(middle - half, 12)), min(1.0, round(middle + half, 12)))  # without 2.8e-17


def t_interval(mean: float, variance: float, degrees: float, tail: float = ENDS[0]) -> Interval:
    """Returns the interval of a mean by Student's t distribution, with the probability `tail` on each side.

    The `variance` is that of the mean, with so many `degrees` of freedom.
    """
    from scipy.stats import t  # takes half a second

    half = float(t.ppf(1 - tail, degrees)) * math.sqrt(variance)
    return Interval(mean - half, mean + half)


def percentiles(draws: ArrayLike, fewest: int = 1) -> Interval | None:
    """Returns the 2.5 % and 97.5 % percentiles of a statistic's finite draws; None if there are less than `fewest`."""
    import numpy as np

    values = np.asarray(draws, dtype=float)
    finite = values[np.isfinite(values)]
    return Interval(*map(float, np.quantile(finite, ENDS))) if len(finite) >= fewest else None


def resamples(size: int) -> Iterator[np.ndarray]:
    """Yields sets that are drawn with replacement from `size` examples: indices `[size]`, without end.

    The sets are the same for each call, so that a set with difficult examples is difficult for all that are compared.
    """
    import numpy as np

    random = np.random.default_rng(SEED)
    while True:
        yield random.integers(size, size=size)


def bootstrap(
    statistics: ArrayLike, scores: Callable[[np.ndarray], Mapping[str, np.ndarray]], counts: ArrayLike | None = None
) -> dict[str, Interval]:
    """Bootstraps scores that are functions of sums over examples (Efron 1979, The Annals of Statistics 7).

    Args:
        statistics: `[examples, K]` numbers of each example.
        scores: computes scores, `[draws]` by name, from the sums of `statistics` over drawn examples, `[draws, K]`.
        counts: `[examples]` number of times that each row of `statistics` occurs; None for once.

    Returns:
        The `percentiles` of each score, always the same for the same arguments; nothing for fewer than
        `FEWEST_EXAMPLES` examples.
    """
    import numpy as np

    rows = np.asarray(statistics, dtype=np.float64)
    repeated = np.ones(len(rows), dtype=np.int64) if counts is None else np.asarray(counts)
    size = int(repeated.sum())
    if size < FEWEST_EXAMPLES:
        return {}
    draws = min(DRAWS, max(FEWEST_DRAWS, MOST_NUMBERS // len(rows)))
    if counts is None:
        drawn = (np.bincount(order, minlength=size) for order in islice(resamples(size), draws))
    else:
        random = np.random.default_rng(SEED)
        drawn = (random.multinomial(size, repeated / size) for _ in range(draws))
    found = scores(np.stack([times @ rows for times in drawn]))
    ends = {name: percentiles(values) for name, values in found.items()}
    return {name: interval for name, interval in ends.items() if interval is not None}


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Returns `numerator / denominator`, 0.0 where the denominator is 0."""
    import numpy as np

    return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator != 0)


POWER = 0.8
"""Probability with which a difference of `Gain.detectable` is detected."""


@dataclass(frozen=True)
class Gain:
    """How much better one of two models is on the same rows: an estimate with its variance, from `rows` rows."""

    value: float
    variance: float
    rows: int
    most: float = math.inf  # largest possible gain, or loss

    @staticmethod
    def of_counts(better: int, worse: int, rows: int) -> Gain:
        """Returns the difference of two shares of right answers, from the rows that only one of the models has right.

        Half a row is added to each cell (Agresti and Min 2005, Statistics in Medicine 24): the interval then keeps its
        promise for few rows, and has a width where the models never differ.
        """
        value = (better - worse) / (rows + 2)
        return Gain(value, ((better + worse + 1) / (rows + 2) - value**2) / (rows + 2), rows, 1.0)

    def interval(self, among: int = 1) -> Interval:
        """Returns the 95 % interval; of `among` gains, all are right together with at least that probability."""
        found = t_interval(self.value, self.variance, self.rows - 1, ENDS[0] / among)
        return Interval(max(found.low, -self.most), min(found.high, self.most))

    @property
    def detectable(self) -> float:
        """The smallest difference that these rows would show with a probability of `POWER`."""
        low, high = self.interval()
        return (high - low) / 2 * (1 + NormalDist().inv_cdf(POWER) / Z)


def holm(gains: Sequence[Gain], bound: float) -> list[Interval]:
    """Returns the intervals of gains, corrected for their number (Holm 1979, Scandinavian Journal of Statistics 6).

    Of N gains, the one that is most clearly below `bound` is tested at 5 % / N, the next one at 5 % / (N - 1), and so
    on, until one is not below it.
    """
    found, left = {}, len(gains)
    for place in sorted(range(len(gains)), key=lambda place: gains[place].interval(left).high):
        found[place] = gains[place].interval(left)
        left -= found[place].high < bound
    return [found[place] for place in range(len(gains))]

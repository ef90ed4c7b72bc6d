"""Confidence intervals: by formula, from draws, and by drawing examples with replacement (the bootstrap)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
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


def t_interval(mean: float, variance: float, degrees: float) -> Interval:
    """Returns the interval of a mean by Student's t distribution.

    Args:
        mean: the mean.
        variance: variance of the mean.
        degrees: degrees of freedom of the variance.
    """
    from scipy.stats import t  # takes half a second

    half = float(t.ppf(ENDS[1], degrees)) * math.sqrt(variance)
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

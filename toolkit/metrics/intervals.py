"""Draws examples with replacement, and bootstraps scores that are computed from sums over examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from toolkit.metrics.score import Interval

SEED, DRAWS, FEWEST_DRAWS, MOST_NUMBERS = 20, 1000, 200, 20_000_000
"""A bootstrap has `DRAWS` samples; of large sets fewer, so that at most `MOST_NUMBERS` are drawn, if possible."""
FEWEST_EXAMPLES = 10
"""Smallest set to bootstrap: intervals of smaller ones would be far too narrow."""


def resamples(size: int) -> Iterator[np.ndarray]:
    """Yields sets that are drawn with replacement from `size` examples: indices `[size]`, without end.

    The sets are the same for each call, so that a set with difficult examples is difficult for all that are compared.
    """
    random = np.random.default_rng(SEED)
    while True:
        yield random.integers(size, size=size)


def bootstrap(
    statistics: ArrayLike,
    scores: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    counts: ArrayLike | None = None,
) -> dict[str, Interval]:
    """Bootstraps scores that are functions of sums over examples (Efron 1979, The Annals of Statistics 7).

    Args:
        statistics: `[examples, K]` numbers of each example.
        scores: computes scores, `[draws]` by name, from the sums of `statistics` over drawn examples, `[draws, K]`.
        counts: `[examples]` number of times that each row of `statistics` occurs; None for once.

    Returns:
        The 2.5 % and 97.5 % percentiles of each score, always the same for the same arguments; nothing for fewer than
        `FEWEST_EXAMPLES` examples. Scores that are not finite are left out of the percentiles.
    """
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
    ends = {name: values[np.isfinite(values)] for name, values in found.items()}
    return {name: Interval(*map(float, np.quantile(v, (0.025, 0.975)))) for name, v in ends.items() if len(v)}


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Returns `numerator / denominator`, 0.0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator != 0)

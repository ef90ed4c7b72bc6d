"""Metrics of several seeds: mean, standard deviation, and paired differences from the baseline.

The seeds of all variants are the same, so each run is compared with the baseline's run of the same seed (Bouthillier et
al. 2021, Accounting for variance in machine learning benchmarks).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SCORE_SEED = 20
CONFIDENCE = 0.95

Runs = Mapping[int, Mapping[str, Any]]
"""The measurements of a variant's runs by `toolkit.lab.compare.worker`, by seed."""


@dataclass(frozen=True)
class Difference:
    """The mean difference between the runs of a variant and those of the baseline, seed by seed.

    Args:
        value: the mean.
        low: lower end of its 95 % interval, or None with a single pair of runs.
        high: upper end, or None.
        pairs: number of seeds with a run of both.
    """

    value: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def same(self) -> bool | None:
        """Whether the interval contains 0, so that the difference could be chance; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= 0 <= self.high


@dataclass(frozen=True)
class Metric:
    """A metric of a variant.

    Args:
        values: its values by seed.
        value: their mean.
        deviation: their sample standard deviation; None with a single run.
        low: lower end of the mean's 95 % interval, or None with a single run.
        high: upper end, or None.
        difference: the difference from the baseline; None for the baseline itself.
    """

    values: Mapping[int, float]
    value: float
    deviation: float | None
    low: float | None
    high: float | None
    difference: Difference | None = None


def metrics_of(runs: Runs, baseline: Runs | None) -> dict[str, Metric]:
    """Returns the metrics of a variant by name; those that are not finite in a run are omitted.

    Args:
        runs: its runs.
        baseline: the runs of the baseline; None for the baseline itself, or if it did not run.
    """
    found = {}
    for name in next(iter(runs.values()))["metrics"]:
        values = {seed: run["figures"][name] for seed, run in runs.items() if run["figures"].get(name) is not None}
        if len(values) < len(runs):  # a perplexity may overflow
            continue
        several = len(values) > 1
        low, high = _interval(runs, name) if several else (None, None)
        found[name] = Metric(
            values=values,
            value=statistics.fmean(values.values()),
            deviation=statistics.stdev(values.values()) if several else None,
            low=low,
            high=high,
            difference=difference(runs, baseline, name) if baseline else None,
        )
    return found


def difference(runs: Runs, baseline: Runs, name: str) -> Difference | None:
    """Compares a metric of two variants, seed by seed.

    The interval is that of a paired t test whose variance has a second part: that of the evaluated rows, from bootstrap
    draws that are the same rows for both. Degrees of freedom are those of Welch and Satterthwaite. A metric without
    draws (the loss) has the first part only.

    Args:
        runs: the runs of one variant.
        baseline: the runs of the other.
        name: name of the metric.

    Returns:
        The difference; None if no seed has a value of both.
    """
    pairs = [
        (run, baseline[seed])
        for seed, run in runs.items()
        if seed in baseline and all(each["figures"].get(name) is not None for each in (run, baseline[seed]))
    ]
    if not pairs:
        return None
    changes = [one["figures"][name] - other["figures"][name] for one, other in pairs]
    mean, count = statistics.fmean(changes), len(changes)
    if count < 2:
        return Difference(mean, None, None, count)
    from scipy.stats import t  # takes half a second

    of_seeds, of_rows = statistics.variance(changes) / count, _variance_of_rows(pairs, name)
    degrees = (count - 1) * ((of_seeds + of_rows) / of_seeds) ** 2 if of_seeds else math.inf
    half = float(t.ppf((1 + CONFIDENCE) / 2, degrees)) * math.sqrt(of_seeds + of_rows)
    return Difference(mean, mean - half, mean + half, count)


def _variance_of_rows(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str) -> float:
    """Returns the variance of the mean difference over draws of the evaluated rows; 0 without draws."""
    one, other = (_draws([pair[side] for pair in pairs], name) for side in (0, 1))
    count = min(one.shape[1], other.shape[1])
    means = (one[:, :count] - other[:, :count]).mean(axis=0)
    finite = means[np.isfinite(means)]
    return float(finite.var(ddof=1)) if len(finite) > 1 else 0.0


def _interval(runs: Runs, name: str) -> tuple[float | None, float | None]:
    """Returns the interval of the mean over runs: bootstrapped over runs and rows, or the extremes without draws."""
    draws = _draws(list(runs.values()), name)
    if not draws.shape[1]:
        scores = [run["figures"][name] for run in runs.values()]
        return min(scores), max(scores)
    chosen = np.random.default_rng(SCORE_SEED).integers(len(draws), size=draws.shape)
    means = np.take_along_axis(draws, chosen, axis=0).mean(axis=0)
    finite = means[np.isfinite(means)]
    if not len(finite):
        return None, None
    low, high = np.quantile(finite, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


def _draws(runs: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Returns the bootstrap values of a metric `[runs, draws]`, of as many draws as all runs have."""
    draws = [run["metrics"][name]["draws"] for run in runs]
    count = min(map(len, draws))
    return np.array([values[:count] for values in draws], dtype=float)

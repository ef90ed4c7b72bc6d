"""Summarises the runs of each variant with intervals, and compares the variants with the first one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.metrics.intervals import percentiles, t_interval
from toolkit.metrics.score import Score

SEED = 20
DRAWS = 500
"""Number of bootstrap draws of runs and their steps for an interval of times."""
MAX_POINTS = 120
"""Maximum number of points of a loss curve; the losses of more steps are averaged."""
PER_CLASS = "eval_f1/"  # how the names of the scores of single classes begin
PARTS = ("parameters", "gradients", "optimizer_state", "rest")
"""Parts of the peak memory, see `toolkit.system.memory.MemoryUse`."""

Measured = Mapping[str, Any]
"""The measurements of one run by `toolkit.lab.compare.runs`."""


@dataclass(frozen=True)
class Figure:
    """A number with its interval."""

    value: float  # the number
    low: float | None = None  # lower end of its interval, or None if one run is not enough for an interval
    high: float | None = None  # upper end of its interval, or None
    ratio: float | None = None  # ratio to the baseline's value, or None
    # whether the difference from the baseline could be chance: the two intervals overlap, or that of a paired
    # difference contains 0. None if an interval is missing
    same: bool | None = None

    def against(self, baseline: Figure) -> Figure:
        """Returns the figure compared with the baseline's."""
        ratio = self.value / baseline.value if baseline.value else None
        same = overlap((self.low, self.high), (baseline.low, baseline.high))
        return Figure(self.value, self.low, self.high, ratio, same)


def overlap(one: Sequence[float | None], other: Sequence[float | None]) -> bool | None:
    """Returns whether two intervals `(low, high)` overlap; None if an end is unknown."""
    low, high = one
    left, right = other
    if low is None or high is None or left is None or right is None:
        return None
    return low <= right and left <= high


def summarise(runs: Sequence[Measured]) -> dict[str, Any]:
    """Summarises the runs of one variant, apart from its metrics.

    Args:
        runs: measurements, one for each seed.

    Returns:
        `figures`: a `Figure` for each of `train_peak` (bytes above the memory used before the model), `step_seconds`
        (median after warm-up), `real_per_second` and `items_per_second` (both over all processes); `memory`: bytes of
        the main process by part, medians over runs; `ranks`: the same of every process and `train_peak`, of the first
        run; `padding`: share of positions that are padding; `exchange`: collectives and bytes of a process per step,
        on average; `loss`: `[step, loss]`, averaged over runs; `losses`: the same of each run, if there are several;
        `spread`: quartiles of the step time in seconds; `load`: load average of the machine at the end of each run;
        and further JSON values.
    """
    steps = [warm(run) for run in runs]
    seconds = np.concatenate([part["seconds"] for part in steps])
    figures = {
        "train_peak": extremes([run["memory"]["train_peak"] for run in runs]),
        "step_seconds": _drawn(steps, lambda part: float(np.median(part["seconds"]))),
        "real_per_second": _drawn(steps, lambda part: _rate(part, "real")),
        "items_per_second": _drawn(steps, lambda part: _rate(part, "items")),
    }
    total = len(runs[0]["steps"]["seconds"])
    real, positions = (sum(sum(run["steps"][key]) for run in runs) for key in ("real", "positions"))
    return {
        "figures": figures,
        "memory": {part: statistics.median(run["memory"][part] for run in runs) for part in PARTS},
        "ranks": [{part: rank[part] for part in (*PARTS, "train_peak")} for rank in runs[0]["ranks"]],
        "optimizer_state_bytes_per_parameter": runs[0]["figures"]["optimizer_state_bytes_per_parameter"],
        "trainable_parameters": runs[0]["figures"]["trainable_parameters"],
        "steps": total,
        "padding": 1 - real / positions if positions else 0.0,
        "exchange": {name: value / total for name, value in runs[0]["exchange"].items()},
        "spread": [float(value) for value in np.quantile(seconds, (0.25, 0.75))],
        "loss": _curve([run["loss"] for run in runs]),
        "losses": [_curve([run["loss"]]) for run in runs] if len(runs) > 1 else [],
        "load": [run["load"] for run in runs],
    }


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Returns which points are on the Pareto front: no other is smaller in one value and not larger in the other."""
    return [
        not any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
        for point in points
    ]


def warm(run: Measured) -> dict[str, np.ndarray]:
    """Returns the steps of a run without warm-up: a tenth of the steps, at least one and at most ten."""
    steps = {name: np.asarray(values, dtype=float) for name, values in run["steps"].items()}
    count = len(steps["seconds"])
    first = min(max(1, count // 10), 10) if count > 1 else 0
    return {name: values[first:] for name, values in steps.items()}


def _rate(steps: Mapping[str, np.ndarray], what: str) -> float:
    return float(steps[what].sum() / steps["seconds"].sum())


def extremes(values: Sequence[float]) -> Figure:
    """Returns the median of the values of runs, from the smallest to the largest of several."""
    several = len(values) > 1
    return Figure(statistics.median(values), min(values) if several else None, max(values) if several else None)


def _drawn(runs: Sequence[Mapping[str, np.ndarray]], statistic: Callable[[Mapping[str, np.ndarray]], float]) -> Figure:
    """Returns the median over runs of a statistic, with an interval bootstrapped over runs and their steps."""
    value = statistics.median(statistic(run) for run in runs)
    if len(runs) == 1:
        return Figure(value)
    random = np.random.default_rng(SEED)

    def draw() -> float:
        values = []
        for place in random.integers(len(runs), size=len(runs)):
            run = runs[place]
            chosen = random.integers(len(run["seconds"]), size=len(run["seconds"]))
            values.append(statistic({name: column[chosen] for name, column in run.items()}))
        return statistics.median(values)

    return Figure(value, *(percentiles([draw() for _ in range(DRAWS)]) or ()))


def _curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Returns the mean loss over runs; if there are many steps, losses are averaged over equal parts of them."""
    length = min(len(curve) for curve in curves)
    if not length:
        return []
    steps = np.array([point[0] for point in curves[0][:length]], dtype=float)
    losses = np.array([[point[1] for point in curve[:length]] for curve in curves]).mean(axis=0)
    parts = np.array_split(np.arange(length), min(length, MAX_POINTS))
    return [[float(steps[part].mean()), float(losses[part].mean())] for part in parts]


Runs = Mapping[int, Mapping[str, Any]]
"""The measurements of a variant's runs by `toolkit.lab.compare.runs`, by seed."""


@dataclass(frozen=True)
class Difference:
    """The mean difference between the runs of a variant and those of the baseline, seed by seed."""

    value: float  # the mean
    low: float | None  # lower end of its 95 % interval, or None with a single pair of runs
    high: float | None  # upper end, or None
    pairs: int  # number of seeds with a run of both

    @property
    def same(self) -> bool | None:
        """Whether the interval contains 0, so that the difference could be chance; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= 0 <= self.high


@dataclass(frozen=True)
class Metric:
    """A metric of a variant."""

    values: Mapping[int, float]  # its values by seed
    value: float  # their mean
    deviation: float | None  # their sample standard deviation; None with a single run
    low: float | None  # lower end of the mean's 95 % interval, or None with a single run
    high: float | None  # upper end, or None
    difference: Difference | None = None  # the difference from the baseline; None for the baseline itself


def metrics_of(runs: Runs, baseline: Runs | None) -> dict[str, Metric]:
    """Returns the metrics that are finite in every run, compared with those of a baseline."""
    found = {}
    for name in next(iter(runs.values()))["metrics"]:
        values = {seed: run["figures"][name] for seed, run in runs.items() if run["figures"].get(name) is not None}
        if len(values) < len(runs) or name.startswith(PER_CLASS):  # a perplexity may overflow
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
    """Compares a metric of two variants, seed by seed; None if no seed has a value of both.

    The interval is that of a paired t test whose variance has a second part: that of the evaluated rows, from bootstrap
    draws that are the same rows for both. Degrees of freedom are those of Welch and Satterthwaite. A metric without
    draws (the loss) has the first part only.
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
    of_seeds, of_rows = statistics.variance(changes) / count, _variance_of_rows(pairs, name)
    degrees = (count - 1) * ((of_seeds + of_rows) / of_seeds) ** 2 if of_seeds else math.inf
    return Difference(mean, *t_interval(mean, of_seeds + of_rows, degrees), count)


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
    chosen = np.random.default_rng(SEED).integers(len(draws), size=draws.shape)
    return percentiles(np.take_along_axis(draws, chosen, axis=0).mean(axis=0)) or (None, None)


def _draws(runs: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Returns the bootstrap values of a metric `[runs, draws]`, of as many draws as all runs have."""
    draws = [run["metrics"].get(name, {"draws": []})["draws"] for run in runs]
    count = min(map(len, draws))
    return np.array([values[:count] for values in draws], dtype=float)


EXPONENTS, CURVES, LEAST_EXPLAINED = np.linspace(0.05, 2, 118), 1000, 0.9
"""Exponents of power laws, number of curves for an interval, least share of the variance that a usable law explains."""


def power_law(rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Fits `a + b * rows ** -c` (Hestness et al. 2017, arXiv 1712.00409) to scores `[P, N]`; returns them, `[3, N]`."""
    terms = np.stack([np.ones((len(EXPONENTS), len(rows))), rows ** -EXPONENTS[:, None]], axis=2)
    fitted = np.linalg.pinv(terms) @ scores
    best = ((terms @ fitted - scores) ** 2).sum(axis=1).argmin(axis=0)
    return np.stack([*fitted[best, :, np.arange(len(best))].T, EXPONENTS[best]])


def worth_of_rows(variants: Sequence[Runs], metric: Score) -> dict[str, Any] | None:
    """Returns what half as many `more` rows would add to scores; the variants are parts of them, the largest first."""
    measured = [runs for runs in reversed(variants) if runs]
    parts = [[runs[seed] for seed in sorted(set.intersection(*map(set, measured)))] for runs in measured]
    if not any(parts):
        return None
    rows = np.array([statistics.fmean(run["train_rows"] for run in runs) for runs in parts])
    more = max(1, int(float(f"{rows[-1] / 2:.1g}")))
    scores = [metric, *(Score(name) for name in parts[0][0]["metrics"] if name.startswith(PER_CLASS))]
    return {"rows": rows.tolist(), "more": more, "scores": {s.name: _worth(parts, s, rows, more) for s in scores}}


def _worth(parts: Sequence[Sequence[Measured]], score: Score, rows: np.ndarray, more: int) -> dict[str, Any]:
    """Returns the `means` of a score, and the `gain` by a power law or the `reason` why it is unknown."""
    values = np.array([[run["figures"].get(score.name, math.nan) for run in runs] for runs in parts], dtype=float)
    means, curves, last = values.mean(axis=1), _curves(parts, score.name, values), rows[-1]
    found = {"means": means.tolist(), "ends": [percentiles(each) for each in curves], "reason": None}
    if len(set(rows)) < 4 or not np.isfinite(means).all():
        return found | {"reason": "it was not measured for four different numbers of rows"}
    better, change = means[-1] - means[0], percentiles(curves[-1] - curves[0])
    if (better if score.greater_is_better else -better) <= 0 or (change and change.low <= 0 <= change.high):
        return found | {"reason": f"it does not clearly improve from {rows[0]:,.0f} to {last:,.0f} rows"}
    a, b, c = law = power_law(rows, means[:, None])[:, 0]
    if (explained := 1 - np.mean((a + b * rows**-c - means) ** 2) / means.var()) < LEAST_EXPLAINED:
        return found | {"reason": f"a power law explains only {explained:.0%} of its variance"}
    gain, gains = (b * ((last + more) ** -c - last**-c) for _, b, c in (law, power_law(rows, curves)))
    return found | {"law": law.tolist(), "gain": float(gain), "interval": percentiles(gains)}


def _curves(parts: Sequence[Sequence[Measured]], name: str, values: np.ndarray) -> np.ndarray:
    """Returns `[P, CURVES]` means that other seeds (Student's t) and rows could have given; none of a single run."""
    count, random, means = values.shape[1], np.random.default_rng(SEED), values.mean(axis=1, keepdims=True)
    size, drawn = CURVES if count > 1 else 0, [_draws(runs, name) for runs in parts]
    spread = random.normal(size=(count, size)) / np.sqrt(count * random.chisquare(max(1, count - 1), size))
    found = means + (values - means) @ spread
    if length := min(each.shape[1] for each in drawn):  # the same rows for all parts
        of_rows = np.array([each[:, :length].mean(axis=0) for each in drawn])
        found += (of_rows - of_rows.mean(axis=1, keepdims=True))[:, random.integers(length, size=size)]
    return found[:, np.isfinite(found).all(axis=0)]

"""Summarises the runs of each variant with intervals, and compares the variants with the first one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SEED = 20
DRAWS = 500
"""Number of bootstrap draws of runs and their steps for an interval of times."""
MAX_POINTS = 120
"""Maximum number of points of a loss curve; the losses of more steps are averaged."""
PARTS = ("parameters", "gradients", "optimizer_state", "rest")
"""Parts of the peak memory, see `toolkit.system.memory.MemoryUse`."""

Measured = Mapping[str, Any]
"""The measurements of one run by `toolkit.lab.compare.worker`."""


@dataclass(frozen=True)
class Figure:
    """A number with its interval.

    Args:
        value: the number.
        low: lower end of its interval, or None if one run is not enough for an interval.
        high: upper end of its interval, or None.
        ratio: ratio to the baseline's value, or None.
        same: whether the difference from the baseline could be chance: the two intervals overlap, or that of a paired
            difference contains 0. None if an interval is missing.
    """

    value: float
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
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
        "train_peak": _extremes([run["memory"]["train_peak"] for run in runs]),
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


def _extremes(values: Sequence[float]) -> Figure:
    several = len(values) > 1
    return Figure(statistics.median(values), min(values) if several else None, max(values) if several else None)


def _drawn(runs: Sequence[Mapping[str, np.ndarray]], statistic: Callable[[Mapping[str, np.ndarray]], float]) -> Figure:
    """Returns the median over runs of a statistic of their steps; its interval is bootstrapped over runs and steps.

    Steps of a single run say nothing about other runs, so it has no interval.

    `scipy.stats.bootstrap` draws on one level only; without drawing runs, the interval would be too narrow.
    """
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

    low, high = np.quantile([draw() for _ in range(DRAWS)], (0.025, 0.975))
    return Figure(value, float(low), float(high))


def _curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Returns the mean loss over runs; if there are many steps, losses are averaged over equal parts of them."""
    length = min(len(curve) for curve in curves)
    if not length:
        return []
    steps = np.array([point[0] for point in curves[0][:length]], dtype=float)
    losses = np.array([[point[1] for point in curve[:length]] for curve in curves]).mean(axis=0)
    parts = np.array_split(np.arange(length), min(length, MAX_POINTS))
    return [[float(steps[part].mean()), float(losses[part].mean())] for part in parts]

"""Speed-up and efficiency with their intervals, the laws of Amdahl and Gustafson, and the serial part that fits best.

Sources: Amdahl 1967, Validity of the single processor approach; Gustafson 1988, Reevaluating Amdahl's law.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toolkit.lab.compare.statistics import DRAWS, SEED, warm
from toolkit.lab.compare.statistics import Figure as Summary

Mode = Literal["strong", "weak"]
Rounds = Mapping[int, Sequence[Mapping[str, Any]]]
"""By number of processes, the measurements of each round by `toolkit.lab.compare.worker`."""


@dataclass(frozen=True)
class Scaled:
    """What the measurements say, by number of processes.

    Args:
        speedup: real items per second relative to those of one process, estimated from the smallest number.
        efficiency: the speed-up per process.
        serial: the part of a step that does not shrink with more processes, from 0 to 1.
    """

    speedup: Mapping[int, Summary]
    efficiency: Mapping[int, Summary]
    serial: Summary


def amdahl(serial: float, processes: float) -> float:
    """Returns the speed-up of the same work by several processes; `serial` is its part on one that cannot be split."""
    return 1 / (serial + (1 - serial) / processes)


def gustafson(serial: float, processes: float) -> float:
    """Returns the speed-up of work that grows with the processes; `serial` is its part of the time that does not."""
    return serial + (1 - serial) * processes


def fitted_serial(rates: Mapping[int, float], mode: Mode) -> float:
    """Returns the serial part with which the mode's law fits best: least squares of relative errors.

    Args:
        rates: items per second by number of processes, two or more.
        mode: `strong` fits Amdahl's law to the times, `weak` Gustafson's law to the rates.
    """
    numbers = np.array([*rates], dtype=float)
    values = np.array([*rates.values()])
    # The time of a fixed work is constant + work / n, the rate of a growing one constant + work * n.
    targets, growing = (1 / values, 1 / numbers) if mode == "strong" else (values, numbers)
    columns = np.stack([np.ones_like(numbers), growing], axis=1) / targets[:, None]
    constant, shared = np.linalg.lstsq(columns, np.ones_like(targets), rcond=None)[0]
    if constant <= 0 or constant + shared <= 0:
        return 0.0
    return float(min(1.0, constant / (constant + shared)))


def scaled(rounds: Rounds, mode: Mode) -> Scaled:
    """Computes speed-ups, efficiencies and the serial part.

    Intervals are those of 95 % of bootstrap draws of rounds and of their steps. A draw takes the same rounds for all
    numbers of processes, since a slow spell of the machine meets all runs of a round. One round has no interval.
    """
    steps = {n: [warm(run) for run in runs] for n, runs in rounds.items()}
    least = min(steps)
    several = len(steps[least])
    plain = _rates(steps, range(several), lambda run: run)
    drawn = []
    if several > 1:
        random = np.random.default_rng(SEED)

        def resampled(run: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            chosen = random.integers(len(run["seconds"]), size=len(run["seconds"]))
            return {name: values[chosen] for name, values in run.items()}

        drawn = [_rates(steps, random.integers(several, size=several).tolist(), resampled) for _ in range(DRAWS)]

    def figure(of: Callable[[Mapping[int, float]], float]) -> Summary:
        if not drawn:
            return Summary(of(plain))
        low, high = np.quantile([of(rates) for rates in drawn], (0.025, 0.975))
        return Summary(of(plain), float(low), float(high))

    def efficiency(n: int) -> Summary:
        return figure(lambda rates: rates[n] / n / (rates[least] / least))

    found = {n: efficiency(n) for n in steps}
    return Scaled(
        speedup={n: Summary(each.value * n, _times(each.low, n), _times(each.high, n)) for n, each in found.items()},
        efficiency=found,
        serial=figure(lambda rates: fitted_serial(rates, mode)),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _rates(
    steps: Mapping[int, Sequence[Mapping[str, np.ndarray]]],
    chosen: Sequence[int],
    seen: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
) -> dict[int, float]:
    """Returns the median over the chosen rounds of the items per second, by number of processes."""
    found = {}
    for n, runs in steps.items():
        of_rounds = [seen(runs[place]) for place in chosen]
        found[n] = statistics.median(float(run["real"].sum() / run["seconds"].sum()) for run in of_rounds)
    return found

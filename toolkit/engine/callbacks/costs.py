"""Time and energy of a run, over all of its processes and sessions, with its emissions and its price."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.api.training import Callback, Training
from toolkit.config.sections import TrackingConfig
from toolkit.distributed.collectives import objects_of_all

HOUR = 3600.0
JOULES_PER_WH = 3600.0


@dataclass(frozen=True)
class Used:
    """What a run has used."""

    seconds: float = 0.0  # time since training began, evaluations and checkpoints included
    # energy of all processes; None if it was not measured throughout (`tracking.system_interval`)
    joules: float | None = 0.0

    @property
    def watt_hours(self) -> float | None:
        """The energy in watt-hours."""
        return None if self.joules is None else self.joules / JOULES_PER_WH

    def figures(self, tracking: TrackingConfig) -> dict[str, float]:
        """Returns the known figures for the report; `tracking` has the emissions and the price of energy."""
        found = {"run_seconds": self.seconds}
        if self.watt_hours is not None:
            found["energy_wh"] = self.watt_hours
            if tracking.grid_intensity is not None:
                found["co2_grams"] = self.watt_hours / 1000 * tracking.grid_intensity
        if tracking.price_per_hour is not None:
            found["cost"] = self.seconds / HOUR * tracking.price_per_hour
        return found


class Costs(Callback):
    """Adds what this session uses to what the sessions before its checkpoint used."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.before = Used()

    def total(self) -> Used:
        """Returns what the run has used. Every rank must call it."""
        system = self.training.run.system
        # Processes of a machine measure the same counters, which count once.
        joules: dict[str, float] = {}
        (seconds, own), *others = objects_of_all((system.seconds, system.joules()))  # the clock of the main process
        for rank in (own, *(energy for _, energy in others)):
            joules |= {name: max(value, joules.get(name, 0.0)) for name, value in rank.items()}
        known = system.interval is not None and self.before.joules is not None
        total = sum(joules.values()) + (self.before.joules or 0.0)
        return Used(self.before.seconds + seconds, total if known else None)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns time and energy so far."""
        return {}, asdict(self.total())

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores time and energy."""
        joules = values["joules"]
        self.before = Used(known(values["seconds"]), None if joules is None else known(joules))


def known(value: Any) -> float:
    """Returns a number of a checkpoint; raises an error if it is none, negative or not finite."""
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"received {value}, must be a finite number of at least 0")
    return number


def total_of(training: Training) -> Used:
    """Returns what a run has used so far. Every rank must call it."""
    costs = training.callbacks["costs"]
    assert isinstance(costs, Costs)
    return costs.total()

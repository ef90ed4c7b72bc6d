"""Collects what a scaling measurement found for `scale.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from toolkit.lab.compare.costs import sums_of
from toolkit.lab.compare.statistics import summarise
from toolkit.lab.launch import batch_and_accumulation, step_rows
from toolkit.lab.plan.measure import Measured, serial_seconds
from toolkit.lab.plan.strategies import scaling
from toolkit.lab.scale.laws import Mode, amdahl, gustafson, scaled
from toolkit.lab.scale.runs import Measurements, Scale
from toolkit.system.limits import usable_cores

FIGURES = ("step_seconds", "real_per_second", "items_per_second")


def build(scale: Scale, measured: Measurements, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was found as JSON values.

    Args:
        scale: what was measured.
        measured: the measurements.
        facts: further entries.
    """
    numbers = [*measured.rounds]
    found = scaled(measured.rounds, scale.mode)
    example = measured.rounds[numbers[0]][0]
    accumulation = batch_and_accumulation(scale.configs[numbers[0]])[1]
    plan = _plan(measured.steps, accumulation, measured.bandwidths, scale.mode)
    points = []
    for number, runs in measured.rounds.items():
        summary = summarise(runs)
        seconds = summary["figures"]["step_seconds"].value
        points.append({
            "processes": number,
            "rows_per_step": step_rows(scale.configs[number], number),
            **{name: _figure(summary["figures"][name]) for name in FIGURES},
            "speedup": _figure(found.speedup[number]),
            "efficiency": _figure(found.efficiency[number]),
            **_exchange(summary["exchange"], measured.bandwidths.get(number), seconds),
            "plan_speedup": plan.get(number),
            "load": summary["load"],
        })  # fmt: skip
    serial = found.serial.value
    several = len(numbers) > 1
    return {
        **facts,
        "mode": scale.mode,
        "rounds": scale.rounds,
        "threads": scale.threads,
        "cores": usable_cores() if example["device"] == "cpu" else None,
        "points": points,
        "serial": _figure(found.serial) if several else None,
        "amdahl": [[n, amdahl(serial, n)] for n in numbers],
        "gustafson": [[n, gustafson(serial, n)] for n in numbers],
        "costs": sums_of(run["figures"] for runs in measured.rounds.values() for run in runs),
        **{name: example[name] for name in ("device", "hardware", "versions", "energy_source")},
    }


def _figure(figure: Any) -> dict[str, float | None]:
    return {name: value for name, value in asdict(figure).items() if name in ("value", "low", "high")}


def _exchange(sent: Mapping[str, float], bandwidth: float | None, seconds: float) -> dict[str, float | None]:
    """Returns what a process sends in a step, and which share of the step that takes if nothing is computed meanwhile.

    Args:
        sent: collectives and bytes of a step; empty if they are not known.
        bandwidth: bytes per second; None for one process.
        seconds: of a step.
    """
    if bandwidth is None:
        return {"exchange_bytes": 0.0, "bandwidth": None, "exchange_share": 0.0}
    if "bytes" not in sent:
        return {"exchange_bytes": None, "bandwidth": bandwidth, "exchange_share": None}
    share = min(1.0, sent["bytes"] / bandwidth / seconds)
    return {"exchange_bytes": sent["bytes"], "bandwidth": bandwidth, "exchange_share": share}


def _plan(
    steps: Sequence[Measured], accumulation: int, bandwidths: Mapping[int, float], mode: Mode
) -> dict[int, float]:
    """Returns the speed-up that `toolkit plan` estimates, by number of processes; empty if it has no measurement."""
    if not steps or steps[-1].seconds is None:
        return {}
    serial = min(serial_seconds(steps), steps[-1].seconds)
    seconds = serial + (steps[-1].seconds - serial) * accumulation
    found = {1: 1.0}
    for number, bandwidth in bandwidths.items():
        line = scaling(seconds, serial, steps[-1].footprint.gradients, bandwidth, number)[-1]
        found[number] = line.amdahl if mode == "strong" else line.gustafson
    return found


def mean_load(found: Mapping[str, Any]) -> float:
    """Returns the load average at the ends of all runs."""
    return fmean(load for point in found["points"] for load in point["load"])

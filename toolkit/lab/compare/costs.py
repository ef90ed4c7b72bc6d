"""What the runs of a comparison took: time, energy, emissions and price, and what reaching a target took."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from toolkit.base.console import format_duration, format_value
from toolkit.document.blocks import Block, Cell, Section, Table, Text
from toolkit.lab.compare.statistics import Figure as Measured

SUMMED = {"run_seconds": "time", "energy_wh": "energy", "co2_grams": "CO2", "cost": "price"}
"""Figures of a run that are added up over all runs, with the titles of their columns."""
TO_TARGET = {"target_seconds": "to target", "target_step": "steps to it", "target_energy_wh": "energy to it"}
"""Figures of the first evaluation that reached `train.target_metric`, with the titles of their columns."""
COLUMNS = {**SUMMED, **TO_TARGET}
UNITS = {"energy_wh": "Wh", "co2_grams": "g", "target_energy_wh": "Wh"}

_Found = Mapping[str, Any]
"""Contents of `comparison.json`."""


def costs_of(runs: Iterable[Mapping[str, Any]], baseline: Mapping[str, Any] | None) -> dict[str, Any]:
    """Summarises what the runs of a variant took.

    Args:
        runs: figures of each run, by name.
        baseline: the result for the baseline, or None for the baseline itself.

    Returns:
        For each figure that a run has, the fields of a `Figure`: the median, and the smallest and largest of several
        runs; and `runs`, the number of those that have it.
    """
    found, every = {}, list(runs)
    for name in COLUMNS:
        values = [float(run[name]) for run in every if run.get(name) is not None]
        if not values:
            continue
        several = len(values) > 1
        figure = Measured(statistics.median(values), min(values) if several else None, max(values) if several else None)
        if baseline and name in baseline:
            figure = figure.against(Measured(*(baseline[name][part] for part in ("value", "low", "high"))))
        found[name] = asdict(figure) | {"runs": len(values)}
    return found


def sums_of(runs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Returns what all runs took together; a figure that a run lacks has no sum."""
    every = list(runs)
    return {
        name: sum(float(run[name]) for run in every)
        for name in SUMMED
        if every and all(run.get(name) is not None for run in every)
    }


def cost_text(name: str, value: float) -> str:
    """Formats a figure with its unit."""
    if name.endswith("_seconds"):
        return format_duration(value)
    return " ".join(filter(None, (format_value(float(value)), UNITS.get(name))))


def cost_columns(found: _Found) -> dict[str, str]:
    """Returns the titles of the figures that any variant has, by name; those of a target if any variant has one."""
    has = {name for variant in found["variants"] for name in variant.get("costs", {})}
    aims = any(variant.get("target") for variant in found["variants"])
    return {name: title for name, title in COLUMNS.items() if name in has or (aims and name == "target_seconds")}


def cell(name: str, variant: Mapping[str, Any]) -> Cell:
    """Returns a figure of a variant, how often a target was reached unless always, and the ratio to the baseline."""
    figure = variant["costs"].get(name)
    if figure is None:
        return Cell("not reached" if name == "target_seconds" and variant.get("target") else "")
    words = [cost_text(name, figure["value"])]
    if name in TO_TARGET and figure["runs"] < variant["runs"]:
        words.append(f"({figure['runs']} of {variant['runs']} runs)")
    if figure["ratio"] is not None:
        words.append(f"{'~ ' if figure['same'] else ''}x{figure['ratio']:.2f}")
    return Cell("\n".join(words), figure["value"])


def cost_lines(found: _Found, labels: Sequence[str]) -> tuple[list[str], list[list[str]]] | None:
    """Returns titles and rows of the table for the terminal; None if nothing is known.

    Args:
        found: the comparison.
        labels: of the variants.
    """
    names = [name for name in cost_columns(found) if name != "run_seconds"]  # the step time says more
    if not names:
        return None
    rows = [
        [label, *(cell(name, variant).text for name in names)]
        for label, variant in zip(labels, found["variants"], strict=True)
        if "costs" in variant
    ]
    sums = found.get("costs", {})
    rows.append(["all runs", *(cost_text(name, sums[name]) if name in sums else "" for name in names)])
    return ["cost", *(COLUMNS[name] for name in names)], rows


def section(found: _Found) -> Section:
    """Returns the section of the page; without blocks if nothing is known."""
    names, sums = cost_columns(found), found.get("costs", {})
    rows: list[list[Any]] = [
        [number, variant["name"], *(cell(name, variant) for name in names)]
        for number, variant in enumerate(found["variants"], start=1)
        if "costs" in variant
    ]
    if not names or not rows:
        return Section("Cost", [])
    rows.append([None, "all runs", *(Cell(cost_text(n, sums[n]), sums[n]) if n in sums else None for n in names)])
    said: list[Block] = [Table(["#", "variant", *names.values()], rows)]
    if source := found.get("energy_source"):
        said.append(Text(f"Medians over runs; ~ marks ratios that could be chance. Energy: {source}."))
    if target := next((variant["target"] for variant in found["variants"] if variant.get("target")), None):
        words = " and ".join(f"{name} {format_value(float(goal))}" for name, goal in target.items())
        said.append(Text(f"The target is {words} (train.target_metric)."))
    return Section("Cost", said)

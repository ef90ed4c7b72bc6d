"""Collects the results of a comparison for `comparison.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from toolkit.config import flatten
from toolkit.lab.compare.running import Comparison, Repeat, command_of
from toolkit.lab.compare.summary import against_first, summarise


def build(comparison: Comparison, repeats: Sequence[Repeat], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the comparison as JSON values.

    Args:
        comparison: the comparison.
        repeats: its runs.
        facts: further entries.
    """
    checked, rows = comparison.checked, []
    baseline = flatten(next(iter(checked.configs.values())))
    for variant in checked.variants:
        own = [repeat for repeat in repeats if repeat.variant.name == variant.name]
        runs = [repeat.measured for repeat in own if repeat.measured is not None]
        row: dict[str, Any] = {
            "name": variant.name,
            "settings": {**variant.settings, **variant.fixed},
            "command": command_of(comparison, variant),
            "runs": len(runs),
            "reason": next((repeat.reason for repeat in own if repeat.reason), None),
        }
        if variant.technique is not None:
            row |= {"technique": asdict(variant.technique), "estimate": comparison.estimates.get(variant.name)}
        if cfg := checked.configs.get(variant.name):
            settings = flatten(cfg)
            row["differs"] = {
                key: [baseline.get(key), settings.get(key)]
                for key in dict.fromkeys([*baseline, *settings])
                if baseline.get(key) != settings.get(key)
            }
        rows.append(row | (summarise(runs) if runs else {}))
    measured = [row for row in rows if "figures" in row]
    if measured:
        against_first(measured)
        if measured[0] is not rows[0]:  # the baseline did not run
            for row in measured:
                for figure in row["figures"].values():
                    figure["ratio"] = figure["same"] = None
    example = next((repeat.measured for repeat in repeats if repeat.measured is not None), None) or {}
    return {
        **facts,
        "recipe": str(comparison.recipe),
        "config": str(comparison.config),
        "overrides": list(comparison.overrides),
        "launch": None if comparison.launch.file is None else str(comparison.launch.file),
        "num_processes": comparison.launch.processes,
        "seeds": list(comparison.seeds),
        "metric": {name: value for name, value in example.get("metric", {}).items() if name != "draws"},
        **{name: example.get(name) for name in ("device", "hardware", "versions")},
        "variants": rows,
    }

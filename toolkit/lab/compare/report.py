"""Collects the results of a comparison for `comparison.json`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from toolkit.base.console import LOGGER
from toolkit.base.errors import InputError
from toolkit.config import flatten
from toolkit.footprint.simulate import simulate
from toolkit.lab.compare.page import COLUMNS, SUMMED
from toolkit.lab.compare.runs import Comparison, Repeat, command_of, trained_run
from toolkit.lab.compare.statistics import Figure, Metric, Runs, metrics_of, summarise
from toolkit.lab.compare.statistics import Figure as Measured
from toolkit.lab.compare.variants import Checked, Variant
from toolkit.lab.jobs.jobs import step_rows
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.subject import resized, subject_of

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.footprint.simulate import Footprint


def build(
    comparison: Comparison, repeats: Sequence[Repeat], facts: Mapping[str, Any], best: Repeat | None = None
) -> dict[str, Any]:
    """Returns the comparison as JSON values.

    Args:
        comparison: the comparison.
        repeats: its runs.
        facts: further entries.
        best: the run whose model was kept, or None.
    """
    metric = comparison.metric
    example: Mapping[str, Any] = next((each.measured for each in repeats if each.measured is not None), {})
    measured: dict[str, Runs] = {
        variant.name: {
            repeat.seed: repeat.measured
            for repeat in repeats
            if repeat.variant.name == variant.name and repeat.measured is not None
        }
        for variant in comparison.checked.variants
    }
    summaries = _summaries(measured, metric.name)
    return {
        **facts,
        "recipe": str(comparison.recipe),
        "config": str(comparison.config),
        "overrides": list(comparison.overrides),
        "launch": None if comparison.launch.file is None else str(comparison.launch.file),
        "num_processes": comparison.launch.processes,
        "seeds": list(comparison.seeds),
        "metric": {"name": metric.name, "greater_is_better": metric.greater_is_better},
        **{name: example.get(name) for name in ("device", "hardware", "versions")},
        "energy_source": example.get("energy_source"),
        "costs": sums_of(run["figures"] for runs in measured.values() for run in runs.values()),
        "before_training": _before(measured, metric.name),
        "best": None if best is None else _kept(comparison, best, repeats),
        "variants": [
            {
                "name": variant.name,
                "settings": {**variant.settings, **variant.fixed},
                "command": command_of(comparison, variant),
                "runs": len(measured[variant.name]),
                "reason": next((each.reason for each in repeats if each.variant is variant and each.reason), None),
                **_configured(comparison, variant),
                **summaries[variant.name],
            }
            for variant in comparison.checked.variants
        ],
    }


def _before(measured: Mapping[str, Runs], metric: str) -> float | None:
    """Returns the mean score before training of the first variant that has one (`eval.eval_on_start`)."""
    name = f"start_{metric.removeprefix('eval_')}"
    for runs in measured.values():
        scores = [run["figures"][name] for run in runs.values() if run["figures"].get(name) is not None]
        if scores:
            return fmean(scores)
    return None


def _kept(comparison: Comparison, best: Repeat, repeats: Sequence[Repeat]) -> dict[str, Any]:
    metric = comparison.metric
    scores = [each.score(metric) for each in repeats if each.variant is best.variant]
    return {
        "variant": best.variant.name,
        "seed": best.seed,
        "metric": metric.name.removeprefix("eval_"),
        "mean": fmean(score for score in scores if score is not None),
        "run": str(trained_run(comparison, best).path),
    }


def _configured(comparison: Comparison, variant: Variant) -> dict[str, Any]:
    """Returns what is known of a variant before it runs."""
    checked, technique = comparison.checked, variant.technique
    row: dict[str, Any] = {}
    if technique is not None:
        row |= {"technique": asdict(technique), "estimate": comparison.estimates.get(variant.name)}
    if cfg := checked.configs.get(variant.name):
        baseline, settings = flatten(next(iter(checked.configs.values()))), flatten(cfg)
        row["rows_per_step"] = step_rows(cfg, comparison.launch.processes)
        row["target"] = dict(cfg.train.target_metric)
        row["differs"] = {
            key: [baseline.get(key), settings.get(key)]
            for key in dict.fromkeys([*baseline, *settings])
            if baseline.get(key) != settings.get(key)
        }
    return row


def _summaries(measured: Mapping[str, Runs], metric: str) -> dict[str, dict[str, Any]]:
    """Returns the summary of each variant, compared with the first; empty for a variant that did not run."""
    first, baseline = next(iter(measured.items()))
    found: dict[str, dict[str, Any]] = {}
    for name, runs in measured.items():
        if not runs:
            found[name] = {}
            continue
        metrics = metrics_of(runs, baseline if name != first else None)
        summary = summarise(list(runs.values()))
        figures: dict[str, Figure] = summary["figures"]
        if main := metrics.get(metric):
            figures[metric] = Figure(main.value, main.low, main.high)
        if baseline and name != first:
            figures |= _against(figures, found[first]["figures"])
            if main and main.difference:
                figures[metric] = replace(figures[metric], same=main.difference.same)
        costs = costs_of(
            (run["figures"] for run in runs.values()), None if name == first else found[first].get("costs")
        )
        found[name] = {**summary, "costs": costs, "metrics": {key: _as_json(value) for key, value in metrics.items()}}
    for summary in filter(None, found.values()):
        summary["figures"] = {key: asdict(figure) for key, figure in summary["figures"].items()}
    return found


def _as_json(metric: Metric) -> dict[str, Any]:
    return asdict(metric) | {"values": {str(seed): value for seed, value in metric.values.items()}}


def _against(figures: Mapping[str, Figure], baseline: Mapping[str, Figure]) -> dict[str, Figure]:
    return {name: figure.against(baseline[name]) for name, figure in figures.items() if name in baseline}


def estimates(task_type: type[Task], checked: Checked) -> dict[str, dict[str, Any]]:
    """Returns the fields of `toolkit.lab.plan.estimates.Estimate` by variant, without those that are refused.

    The estimates are for the longest rows, as `toolkit plan` makes them; empty if a step cannot be simulated.
    """
    found: dict[str, dict[str, Any]] = {}
    footprints: dict[int, Footprint] = {}
    first = next(iter(checked.configs.values()))
    try:
        subject = subject_of(first, task_type(first))
        for variant in checked.variants:
            cfg = checked.configs.get(variant.name) or checked.planned.get(variant.name)
            if cfg is None or variant.technique is None or cfg.parallel.backend == "deepspeed":
                continue  # what DeepSpeed holds in addition is not known here
            variant_of = resized(subject, cfg)
            rows = variant_of.rows
            if rows not in footprints:
                footprints[rows] = simulate(variant_of)
            found[variant.name] = asdict(estimated(footprints[rows], cfg, variant.technique.processes))
    except InputError as error:
        LOGGER.warning("the strategies are not estimated: %s", error)
    return found


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

"""A comparison from its options to its report: what `comparison.json` has."""

from __future__ import annotations

import shlex
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from functools import reduce
from statistics import fmean
from textwrap import fill
from typing import Any, ClassVar

from toolkit.api.run import best_metric, metric_named
from toolkit.api.task import Task
from toolkit.base.console import LOGGER, PLAIN_WIDTH, counted, say
from toolkit.base.errors import InputError, RunError
from toolkit.checkpoint.lock import OutputLock
from toolkit.config import flatten
from toolkit.config.keys import field_types, section_types, to_yaml
from toolkit.data.row_cache import code_fingerprint
from toolkit.document.blocks import Block, Page
from toolkit.footprint.simulate import Footprint, simulate
from toolkit.lab.compare import page
from toolkit.lab.compare.page import COLUMNS, SUMMED
from toolkit.lab.compare.runs import (
    Comparison,
    Repeat,
    command_of,
    keep_and_show,
    load_average,
    repeats_of,
    run_and_show,
    trained_run,
)
from toolkit.lab.compare.statistics import Figure, Metric, Runs, extremes, metrics_of, summarise, worth_of_rows
from toolkit.lab.compare.variants import QUESTIONS, Checked, Variant, check_variants, combine, of_question, read_switch
from toolkit.lab.jobs.jobs import step_rows
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.subject import resized, subject_of
from toolkit.lab.tool import Report, Request

PATIENCE = 60.0
"""Seconds that the last part of a comparison waits for another that writes it at the same time."""


class ComparisonReport(Report):
    """A comparison; its page is that of the JSON values, `found`."""

    FILE: ClassVar[str] = "comparison"

    def __init__(self, found: dict[str, Any]) -> None:
        self.found, self.command = found, found["command"]

    def as_json(self) -> dict[str, Any]:
        """Returns the content of the JSON file."""
        return self.found

    def page(self) -> Page:
        """Returns the page."""
        return page.page(self.found)

    def on_terminal(self) -> Iterator[Block]:
        """Yields the tables and sentences."""
        return page.on_terminal(self.found)


def compare(request: Request, asked: Namespace) -> ComparisonReport | None:
    """Runs the remaining runs of a comparison; a part of it gives a report only if it is the last one.

    Raises ConfigError if settings of variants are invalid; InputError if arguments are; RunError if every run failed.
    """
    comparison = comparison_of(request, asked)
    request.make_output(again=True)
    began = time.monotonic()
    if asked.part is not None and not _run_part(comparison, *asked.part):
        return None
    with OutputLock(comparison.folder, patience_seconds=0 if asked.part is None else PATIENCE):
        repeats = repeats_of(comparison, failures=asked.part is not None)
        load = load_average() if any(each.state == "waiting" for each in repeats) else None
        run_and_show(comparison, repeats, load)
        best = keep_and_show(comparison, repeats)
    facts = {
        "command": shlex.split(request.command),
        "preset": asked.preset,
        "mode": None if asked.preset else asked.mode,
        "seconds": round(time.monotonic() - began, 1),
        "load_at_start": load,
    }
    return ComparisonReport(build(comparison, repeats, facts, best))


def _run_part(comparison: Comparison, part: int, parts: int) -> bool:
    """Runs a part of the comparison, and returns whether all of it is finished."""
    if comparison.keep_best:
        raise InputError("--keep-best: depends on all runs; use it in a command without --part, after the parts")
    own = comparison.folder / "parts" / f"{part}-of-{parts}"
    own.mkdir(parents=True, exist_ok=True)
    with OutputLock(own):
        mine = repeats_of(comparison)[part - 1 :: parts]
        run_and_show(comparison, mine, None)
    left = sum(repeat.state == "waiting" for repeat in repeats_of(comparison, failures=True))
    failed = sum(repeat.state == "failed" for repeat in mine)
    if not left:
        return True
    say(f"not finished: {counted(left, 'run')} of the comparison ({failed} of this part failed)")
    if mine and failed == len(mine):
        raise RunError("every run of this part failed; the reasons are listed above")
    return False


def comparison_of(request: Request, asked: Namespace) -> Comparison:
    """Checks the options and returns the comparison to run."""
    cfg, task, launch = request.cfg, request.task, request.launch
    metric = metric_named(asked.metric, task, "--metric") if asked.metric else best_metric(cfg, task)
    question = QUESTIONS[asked.preset] if asked.preset else None
    if question is None:
        hints = field_types(section_types(request.task_type.Options))
        keys = [key for key, kind in hints.items() if not is_dataclass(kind)]
        found = {".".join(key): reduce(getattr, key, cfg) for key in keys}
        values = {key: value if isinstance(value, str) else to_yaml(value) for key, value in found.items()}
        variants = combine([read_switch(text, values) for text in asked.switch], asked.mode)
        if len(variants) == 1:
            raise InputError("--switch: nothing to compare; add a second value")
    else:
        variants = of_question(question, cfg, launch.processes, asked.steps)
    overrides = [*request.overrides, *([f"train.max_steps={asked.steps}"] if asked.steps else [])]
    checked = check_variants(request.task_type, str(request.config), overrides, variants, launch, asked.keep_window)
    lenient = asked.skip_refused or question is not None
    if not lenient or checked.variants[0].name in checked.refused or len(checked.configs) < 2:
        checked.raise_problems()
    for name, problems in checked.refused.items():
        say(fill(f"skipped: variant {name}: {'; '.join(problems)}", PLAIN_WIDTH, break_long_words=False))
    return Comparison(
        recipe=request.recipe, config=request.config, overrides=overrides, checked=checked, launch=launch,
        seeds=range(cfg.seed, cfg.seed + asked.seeds), draws=asked.draws, code=code_fingerprint(task), metric=metric,
        keep_best=asked.keep_best, folder=request.output,
        estimates=estimates(request.task_type, checked) if any(each.technique for each in variants) else {},
    )  # fmt: skip


def build(
    comparison: Comparison, repeats: Sequence[Repeat], facts: Mapping[str, Any], best: Repeat | None = None
) -> dict[str, Any]:
    """Returns the comparison as JSON values: `facts` first, then its runs, and the one whose model was kept."""
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
        **{name: example.get(name) for name in ("device", "hardware", "versions", "energy_source")},
        "costs": sums_of(run["figures"] for runs in measured.values() for run in runs.values()),
        "before_training": _before(measured, metric.name),
        "rows": worth_of_rows(list(measured.values()), metric) if facts.get("preset") == "rows" else None,
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
        if scores := [run["figures"][name] for run in runs.values() if run["figures"].get(name) is not None]:
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
            others = found[first]["figures"]
            figures |= {key: figure.against(others[key]) for key, figure in figures.items() if key in others}
            if main and main.difference:
                figures[metric] = replace(figures[metric], same=main.difference.same)
        against = None if name == first else found[first].get("costs")
        costs = costs_of((run["figures"] for run in runs.values()), against)
        found[name] = {**summary, "costs": costs, "metrics": {key: _as_json(value) for key, value in metrics.items()}}
    for summary in filter(None, found.values()):
        summary["figures"] = {key: asdict(figure) for key, figure in summary["figures"].items()}
    return found


def _as_json(metric: Metric) -> dict[str, Any]:
    return asdict(metric) | {"values": {str(seed): value for seed, value in metric.values.items()}}


def estimates(task_type: type[Task], checked: Checked) -> dict[str, dict[str, Any]]:
    """Returns the fields of `toolkit.lab.plan.estimates.Estimate` by variant, without the rejected ones.

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
    """Returns the median and extremes over runs of each figure, with the number of these `runs`."""
    found, every = {}, list(runs)
    for name in COLUMNS:
        if not (values := [float(run[name]) for run in every if run.get(name) is not None]):
            continue
        figure = extremes(values)
        if baseline and name in baseline:
            figure = figure.against(Figure(*(baseline[name][part] for part in ("value", "low", "high"))))
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

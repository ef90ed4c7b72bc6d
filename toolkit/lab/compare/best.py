"""Keeps the model of the best run: `toolkit compare --keep-best`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from statistics import fmean

from toolkit.lab.compare.runs import Comparison, Repeat, trained_run
from toolkit.metrics.score import Score


def best_run(repeats: Sequence[Repeat], metric: Score) -> Repeat | None:
    """Returns the best run of the best variant: the one whose mean is best, among those with the most finished runs.

    Equal ones are taken in order, so the baseline wins a tie. None if no run has the metric.
    """
    scores: dict[str, list[tuple[float, Repeat]]] = {}
    sign = 1 if metric.greater_is_better else -1
    for repeat in repeats:
        if (score := repeat.score(metric)) is not None:
            scores.setdefault(repeat.variant.name, []).append((sign * score, repeat))
    if not scores:
        return None
    most = max(map(len, scores.values()))
    complete = [runs for runs in scores.values() if len(runs) == most]
    winner = max(complete, key=lambda runs: fmean(score for score, _ in runs))
    return max(winner, key=lambda run: run[0])[1]


def keep_best(comparison: Comparison, repeats: Sequence[Repeat]) -> Repeat | None:
    """Deletes the models of all runs but the best one, which is returned; does nothing without `--keep-best`."""
    if not comparison.keep_best:
        return None
    best = best_run(repeats, comparison.metric)
    for repeat in repeats:
        if repeat is not best and repeat.state in ("done", "kept", "failed"):
            run = trained_run(comparison, repeat)
            for folder in (run.model, run.base, run.processor, run.snapshots):
                shutil.rmtree(folder, ignore_errors=True)
    return best

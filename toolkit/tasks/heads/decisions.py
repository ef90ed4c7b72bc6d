"""Decision rules: thresholds that keep a promise, sets, intervals and temperature, and their check on other rows.

Lower bounds are those of Clopper and Pearson 1934 (Biometrika 26); thresholds are tested in a fixed order, so that
their number costs nothing (Angelopoulos et al. 2021, Learn then Test, arXiv 2110.01052).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.base.errors import InputError, RunError
from toolkit.data.splits import fold_numbers

if TYPE_CHECKING:
    from toolkit.document.blocks import Section
    from toolkit.tasks.heads.head import Head

FOLDS, FEWEST_ROWS, LEVEL = 5, 20, 0.9
BINS = 15
"""Bins of confidence, as in Guo et al. 2017 (arXiv 1706.04599), whose temperature this is."""
Rows = Sequence[np.ndarray]
"""Scores and targets of rows."""
Found = tuple[float | None, float]
"""The threshold that keeps a promise, or None, and the largest value that could be promised."""


@dataclass(frozen=True)
class Promise:
    """What decisions keep on new rows, with probability `confidence`."""

    rule: str | None = None  # a name of `RULES`; None decides every row
    value: float = 0.0  # the least precision or recall
    confidence: float = 0.95
    sets: float | None = None  # share of rows whose set, or interval, contains the truth

    def __str__(self) -> str:
        kept = f"{self.rule} {self.value:g} with confidence {self.confidence:g}" if self.value else self.rule
        return f"Promise: {kept or 'none'}"


def lower_bound(hits: Any, counts: Any, error: float) -> np.ndarray:
    """Returns one-sided lower bounds of shares, `hits` of `counts`, which are wrong with probability `error`."""
    from scipy.stats import beta

    return np.where(np.greater(hits, 0), beta.ppf(error, np.maximum(hits, 1), np.subtract(counts, hits) + 1), 0.0)


def interval(hits: Any, count: Any) -> str:
    """Returns a share with its two-sided 95 % interval as text."""
    from scipy.stats import binomtest

    ends = binomtest(int(hits), int(count)).proportion_ci() if count else None
    return "no rows" if ends is None else f"{hits / count:.3f} ({ends.low:.3f} to {ends.high:.3f})"


def below(scores: np.ndarray, value: float) -> float:
    """Returns the middle of a score and the next lower one: a threshold that rounding does not cross."""
    lower = scores[scores < value]
    return float(value + lower.max()) / 2 if lower.size else 0.0


STARTS, STEPS = (0.1, 0.25, 0.5, 0.75, 1.0), 100
"""Shares of decided rows at which tests begin, each with its part of the error probability, and number of shares."""


def _precise(scores: np.ndarray, right: np.ndarray, promise: Promise) -> Found:
    """Finds the lowest threshold above which rows are right; from each start, tests end at the first failure."""
    candidates = min(len(scores), math.ceil(2 * scores.sum()))  # of a rare label, few rows are
    if not candidates:
        return None, 0.0
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(right[order])
    places = np.ceil(np.arange(1, STEPS + 1) / STEPS * candidates - 1e-9).astype(int) - 1
    counts = np.searchsorted(-ranked, -ranked[places], side="right")  # with equal scores
    bounds = lower_bound(hits[counts - 1], counts, (1 - promise.confidence) / len(STARTS))
    starts, failed = [round(share * STEPS) - 1 for share in STARTS], [*np.flatnonzero(bounds < promise.value), STEPS]
    last = [min(each for each in failed if each >= start) - 1 for start in starts if start not in failed]
    return below(scores, ranked[counts[max(last)] - 1]) if last else None, float(bounds[starts].max())


def _complete(scores: np.ndarray, right: np.ndarray, promise: Promise) -> Found:
    """Finds the highest threshold above which positive rows are; more of them only as it falls, so no start is lost."""
    positive, count = np.sort(scores[right]), int(right.sum())
    bounds = lower_bound(count - np.arange(count), count, 1 - promise.confidence)
    kept = np.flatnonzero(bounds >= promise.value)
    return below(scores, positive[kept[-1]]) if len(kept) else None, float(bounds.max(initial=0.0))


def _best_f1(scores: np.ndarray, right: np.ndarray, promise: Promise) -> Found:
    """Finds the threshold with the largest F1 score, which promises nothing."""
    from sklearn.metrics import precision_recall_curve

    if not right.any():
        return None, 0.0
    precision, recall, thresholds = precision_recall_curve(right, scores)
    return below(scores, thresholds[(precision * recall / (precision + recall + 1e-12))[:-1].argmax()]), 0.0


RULES: dict[str, Callable[[np.ndarray, np.ndarray, Promise], Found]] = {
    "precision": _precise,
    "recall": _complete,
    "best_f1": _best_f1,
}
"""Decision rules: functions of confidences, of which rows are right (or positive), and of the promise."""


def _quantile(errors: np.ndarray, level: float, strict: bool) -> float:
    """Returns the error of split conformal prediction (Angelopoulos and Bates 2021, arXiv 2107.07511)."""
    place = math.ceil((len(errors) + 1) * level - 1e-9)
    if place > len(errors) and strict:
        raise RunError(f"--sets {level:g}: {len(errors)} rows can show at most {len(errors) / (len(errors) + 1):.4g}")
    value = np.sort(errors)[min(place, len(errors)) - 1]
    return float(-below(-errors, -value) or value)


def _proper(scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    from sklearn.metrics import brier_score_loss, log_loss

    labels = [*range(scores.shape[1])] if scores.ndim == 2 else [0, 1]
    places, confidence, hits = _binned(scores, targets)
    return {
        "expected calibration error": float(np.abs(np.bincount(places, confidence - hits)).sum() / len(hits)),
        "Brier score": float(brier_score_loss(targets, scores, labels=labels)),
        "log loss": float(log_loss(targets, scores, labels=labels)),
    }


def _binned(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the bin and the confidence of answers, and whether they are right."""
    confidence, hits = (scores.max(1), scores.argmax(1) == targets) if scores.ndim == 2 else (scores, targets)
    return np.minimum((confidence * BINS).astype(int), BINS - 1), confidence, hits


def fit(head: Head, rows: Rows, promise: Promise, strict: bool = True) -> dict[str, Any]:
    """Returns the decision for scores without one; its `columns` are added to answers.

    Raises RunError if no threshold keeps the promise, unless not `strict`: no row is decided then.
    """
    from scipy.optimize import minimize_scalar

    scores, targets = rows
    found: dict[str, Any] = {"columns": [*head.decided]}
    if head.has_probabilities:
        loss = lambda log: _proper(*head.items(head.tempered(scores, math.exp(log)), targets))["log loss"]  # noqa: E731
        found["temperature"] = math.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
        scores = head.tempered(scores, found["temperature"])
        every = head.judged(scores, targets).items()
        judged = {name: (sure[sure >= 0], right[sure >= 0]) for name, (sure, right) in every}
        limits = {name: RULES[promise.rule](*each, promise) for name, each in judged.items()} if promise.rule else {}
        needed = [limits[""]] if "" in limits else [*limits.values()]
        if strict and needed and all(limit is None for limit, _ in needed):
            can = max(most for _, most in needed)
            raise RunError(
                f"no threshold keeps the promise on {len(scores):,} rows. {promise}; the best that can be kept is "
                f"{can:.4g}. Lower it, or give more rows (--data)"
            )
        found["thresholds"] = {name: limits[name][0] if limits else head.threshold for name in judged}
    if promise.sets or not head.has_probabilities:
        misses = {name: each[~np.isnan(each)] for name, each in head.misses(scores, targets).items()}
        found["misses"] = {name: _quantile(each, promise.sets or LEVEL, strict) for name, each in misses.items()}
        found["columns"] += ["prediction_set"] if head.has_probabilities else []
    return found


def calibrate(head: Head, sets: Mapping[str, Rows], promise: Promise) -> tuple[dict[str, Any], list[Section]]:
    """Fits a head's decision to the first of one or two sets, and checks it on the second, else on folds of the first.

    Raises InputError for too few rows; RunError if no threshold keeps the promise.
    """
    (name, rows), *others = sets.items()
    for each, (scores, _) in sets.items():
        if len(scores) < FEWEST_ROWS:
            raise InputError(f"{each}: {len(scores)} labelled rows, but calibration needs at least {FEWEST_ROWS}")
    decision = fit(head, rows, promise)
    parts, checked = [(decision, each) for _, each in others], "".join(each for each, _ in others)
    if not others:
        folds, checked = fold_numbers(len(rows[0]), FOLDS, seed=0), f"{FOLDS} folds of these, fitted to the others"
        for number in range(FOLDS):
            own = fit(head, [each[folds != number] for each in rows], promise, strict=False)
            parts.append((own, [each[folds == number] for each in rows]))
    after = [(own, head.tempered(scores, own.get("temperature", 1.0)), targets) for own, (scores, targets) in parts]
    joined = [np.concatenate([each[place] for _, each in parts]) for place in (0, 1)]
    lead = {"fitted_on": f"{len(rows[0]):,} rows of {name}", "checked_on": f"{checked} ({len(joined[0]):,} rows)"}
    tempered = np.concatenate([scores for _, scores, _ in after])
    sections = [*_reliability(head, joined, tempered), *_decided(head, decision, after, promise)]
    return decision | lead, sections + head.report_sections_of(tempered, joined[1])


def _reliability(head: Head, rows: Rows, after: np.ndarray) -> Iterator[Section]:
    from toolkit.document.blocks import Figure, Section, Table
    from toolkit.document.charts import line_chart

    if not head.has_probabilities:
        return
    sides = {"before": head.items(*rows), "after": head.items(after, rows[1])}
    scores = {name: _proper(*side) for name, side in sides.items()}
    lines: dict[str, Any] = {"as sure as right": ([0, 1], [0, 1])}
    for name, side in sides.items():
        places, *values = _binned(*side)
        counts = np.bincount(places)
        lines[name] = [np.bincount(places, each)[counts > 0] / counts[counts > 0] for each in values]
    title = "Reliability: the share of right answers by confidence"
    picture = line_chart(
        lines, title=title, x_label="confidence", y_label="share right", whole=False, point="confidence"
    )
    table = Table(["score", *scores], [[name, *(each[name] for each in scores.values())] for name in scores["after"]])
    yield Section("Probabilities", [table, Figure(title, picture, file="calibration.svg")])


def _decided(head: Head, decision: Mapping[str, Any], parts: Any, promise: Promise) -> Iterator[Section]:
    """Yields tables of what decisions do on the rows of parts: `(decision, scores, targets)` each."""
    from toolkit.document.blocks import Section, Table

    rows: list[list[Any]] = []
    for name, limit in decision.get("thresholds", {}).items():
        judged = [(*head.judged(*each)[name], least_of(own, name)) for own, *each in parts]
        taken = np.concatenate([(sure >= max(0.0, least)) & (limit is not None) for sure, _, least in judged])
        right = np.concatenate([hits for _, hits, _ in judged])
        found = [interval((right & taken).sum(), every.sum()) for every in (taken, right)]
        rows.append([name or "all", limit, *found, float(taken.mean())])
    if rows:
        recall = "share of right answers decided" if "" in decision["thresholds"] else "recall"
        header = ["automate", "threshold", "precision (95 % interval)", recall, "share of rows decided"]
        yield Section("Decisions", [Table(header, rows)])
    rows = []
    for name, limit in decision.get("misses", {}).items():
        missed = [(head.misses(*each)[name], own["misses"][name]) for own, *each in parts]
        inside = np.concatenate([each[~np.isnan(each)] <= most for each, most in missed])
        sizes = [scores >= 1 - own["misses"][name] for own, scores, _ in parts]
        size = float(np.concatenate(sizes).sum(1).mean()) if head.has_probabilities else None
        rows.append([name or "sets", limit, interval(inside.sum(), len(inside)), size])
    if rows:
        header = ["of", "half width, or 1 - least score", "with the truth (95 % interval)", "classes per set"]
        title = f"Sets or intervals with the truth, {promise.sets or LEVEL:.3g} of the time"
        yield Section(title, [Table(header, rows)])


def least_of(decision: Mapping[str, Any], name: str) -> float:
    """Returns the confidence from which rows are decided; infinite if no threshold keeps the promise."""
    limit = decision["thresholds"][name]
    return math.inf if limit is None else float(limit)

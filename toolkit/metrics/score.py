"""Metrics by name: their properties, and how far a value can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from toolkit.metrics.intervals import Interval


@dataclass(frozen=True)
class Quality:
    """How far the scores of an evaluation set can be trusted. Scores are named without prefix."""

    intervals: Mapping[str, Interval] = field(default_factory=dict)  # 95 % confidence intervals by score
    constant: str = ""  # the constant answer that the scores are compared with, for instance `always 'positive'`
    baseline: Mapping[str, float] = field(default_factory=dict)  # scores of the constant answer
    trusted: str = ""  # the score to look at first; empty for the task's `best_metric`
    hints: tuple[str, ...] = ()  # advice about reading the scores, as sentences

    def figures(self, prefix: str) -> dict[str, float]:
        """Returns all numbers by name: `<prefix><score>_low`, `<prefix><score>_high`, `<prefix><score>_baseline`."""
        ends = {f"{prefix}{name}_{end}": value for name, pair in self.intervals.items()
                for end, value in pair._asdict().items()}  # fmt: skip
        return ends | {f"{prefix}{name}_baseline": value for name, value in self.baseline.items()}


def compared(score: Score, interval: Interval | None, baseline: float, answer: str, count: int) -> list[str]:
    """Returns the sentence about a score of `count` examples that is not clearly better than a constant answer's."""
    if interval is None:
        return []
    sign = 1 if score.greater_is_better else -1
    worst, best = sorted(sign * end for end in interval)
    worse, unbeatable = best < sign * baseline, baseline == float(score.greater_is_better)
    if worst > sign * baseline or (unbeatable and not worse):
        return []
    how = "clearly worse" if worse else "not clearly better"
    return [f"On {count:,} examples, this {score.name} is {how} than always answering {answer}."]


def absent(kind: str, labels: Sequence[str], counts: Iterable[int], trusted: str) -> list[str]:
    """Returns the sentence about labels without examples, each of which adds a 0 to averages over all of them."""
    missing = [label for label, count in zip(labels, counts, strict=True) if not count]
    if not missing:
        return []
    most, names = 1 - len(missing) / len(labels), ", ".join(map(repr, missing[:3])) + ", ..." * (len(missing) > 3)
    return [
        f"No example here is of {names} ({len(missing)} of {len(labels)} {kind}): macro averages count them as 0, so "
        f"that even a model without errors gets {most:.3g}. Trust {trusted}, or evaluate rows of all {kind}."
    ]


T = TypeVar("T")

PREFIXES = ("", "eval_", "test_", "ensemble_")
"""Prefixes of metric names: none in the results of a task, otherwise the set or model that was scored."""


@dataclass(frozen=True)
class Score:
    """A metric of predictions."""

    name: str  # without the prefix of an evaluation set
    greater_is_better: bool = True
    per_class: bool = False  # whether it is the metric of a single class, which tables of a run skip
    unit: str = ""  # unit of its values, for instance `s` or `B`; empty for a plain number


def per_class_scores(names: Iterable[str], labels: Sequence[str] | None) -> tuple[Score, ...]:
    """Returns the scores `<name>/<label>`, grouped by name; none if the labels are not known yet."""
    return tuple(Score(f"{name}/{label}", per_class=True) for name in names for label in labels or ())


def by_class(names: Sequence[str], labels: Sequence[str], values: Iterable[Any]) -> dict[str, float]:
    """Returns the values of `per_class_scores`, from each label's values in the order of `names`."""
    rows = list(zip(labels, values, strict=True))
    return {f"{name}/{label}": float(row[i]) for i, name in enumerate(names) for label, row in rows}


def without_classes(figures: Mapping[str, T], scores: Iterable[Score]) -> dict[str, T]:
    """Returns figures, named with or without one of `PREFIXES`, except a task's scores of single classes."""
    hidden = {f"{prefix}{score.name}" for score in scores if score.per_class for prefix in PREFIXES}
    return {name: value for name, value in figures.items() if name not in hidden}


def short_name(name: str) -> str:
    """Returns the name of a metric in results: the last part of its dotted name, or its folder's."""
    return Path(name).stem if "/" in name else name.rpartition(".")[2]

"""Names and properties of metrics, so that nothing has to be guessed from a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

PREFIXES = ("", "eval_", "test_", "ensemble_")
"""Prefixes of metric names: none in the results of a task, otherwise the set or model that was scored."""


@dataclass(frozen=True)
class Score:
    """A metric.

    Args:
        name: its name, without the prefix of an evaluation set.
        greater_is_better: whether a greater value is better.
        per_class: whether it is the metric of a single class, which tables of a run leave out.
        unit: unit of its values, for instance `s` or `B`; empty for a plain number.
    """

    name: str
    greater_is_better: bool = True
    per_class: bool = False
    unit: str = ""


def per_class_scores(names: Iterable[str], labels: Sequence[str] | None) -> tuple[Score, ...]:
    """Returns the scores `<name>/<label>`, grouped by name; none if the labels are not known yet."""
    return tuple(Score(f"{name}/{label}", per_class=True) for name in names for label in labels or ())


def without_classes(figures: Mapping[str, T], scores: Iterable[Score]) -> dict[str, T]:
    """Returns figures without those of single classes.

    Args:
        figures: values by name, with or without one of `PREFIXES`.
        scores: the scores of the task.
    """
    hidden = {f"{prefix}{score.name}" for score in scores if score.per_class for prefix in PREFIXES}
    return {name: value for name, value in figures.items() if name not in hidden}

"""What a label column means: one class, several labels, or numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.lab.init.profile import (
    BOOLEAN,
    DATE,
    FILES,
    MIXED,
    NOTHING,
    NUMBER,
    NUMBERS,
    OBJECT,
    TEXT,
    TEXTS,
    WHOLE,
    ColumnProfile,
)

MOST_WHOLE_CLASSES = 20
"""Whole numbers with at most this many values are classes."""
_SEPARATORS = (",", ";", "|")
_LEAST_SEPARATED = 0.05
"""Smallest share of values with several labels."""
_MOST_CHARACTERS = 60
_MOST_CLASSES = 500

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


@dataclass(frozen=True)
class LabelKind:
    """The meaning of a label column.

    Args:
        problem_type: `task.problem_type`.
        reason: why.
        separator: `task.label_separator`, or None where it does not matter.
    """

    problem_type: str
    reason: str
    separator: str | None = None


def can_be_label(column: ColumnProfile) -> bool:
    """Whether a column can be a label: numbers that are no ids, or values that repeat."""
    if column.kind in (TEXTS, NUMBERS):
        return True
    if column.kind == OBJECT:
        return all(isinstance(flag, bool | int | float | None) for value in column.values for flag in value.values())
    if column.kind in (DATE, MIXED, NOTHING, *FILES.values()) or len(column.counts) < 2:
        return False
    if column.kind in (WHOLE, NUMBER):
        return column.kind == NUMBER or not column.is_unique
    repeats = len(column.counts) <= min(_MOST_CLASSES, len(column.values) / 2)
    return repeats and column.mean_characters <= _MOST_CHARACTERS


def merged(counts: Mapping[str, int]) -> dict[str, str]:
    """Maps labels that differ from a more frequent one only in case and blanks to that one.

    Args:
        counts: number of rows with each label.
    """
    alike: dict[str, list[str]] = {}
    for label in counts:
        alike.setdefault(" ".join(label.casefold().split()), []).append(label)
    most = {label: max(group, key=lambda name: counts[name]) for group in alike.values() for label in group}
    return {label: name for label, name in most.items() if label != name}


def label_kind(column: ColumnProfile) -> LabelKind:
    """Returns what a label column most likely means."""
    if column.kind in (TEXTS, OBJECT) and not _has_numbers(column):
        return LabelKind(MULTI, f"{column.name!r} holds {column.kind}")
    if column.kind in (NUMBERS, OBJECT):
        return LabelKind(REGRESSION, f"{column.name!r} holds several numbers per row")
    different = len({float(value) for value in column.numbers}) if column.numbers else len(column.counts)
    if column.kind == WHOLE and different <= MOST_WHOLE_CLASSES:
        return LabelKind(SINGLE, f"whole numbers with at most {MOST_WHOLE_CLASSES} values are classes")
    if column.kind in (WHOLE, NUMBER):
        low, high = min(column.numbers), max(column.numbers)
        few = f"whole numbers with at most {MOST_WHOLE_CLASSES} values would be classes"
        return LabelKind(REGRESSION, f"{column.kind} from {low:g} to {high:g} with {different} values; {few}")
    for separator in _SEPARATORS if column.kind == TEXT else ():
        if share := _separated(column, separator):
            return LabelKind(
                MULTI, f"{share:.0%} of the values are several labels, separated by {separator!r}", separator
            )
    return LabelKind(SINGLE, "true or false" if column.kind == BOOLEAN else "one name per row")


def _has_numbers(column: ColumnProfile) -> bool:
    return column.kind == OBJECT and any(
        isinstance(value, float) or (isinstance(value, int) and value not in (0, 1))
        for values in column.values
        for value in values.values()
    )


def _separated(column: ColumnProfile, separator: str) -> float:
    """Returns the share of values with several labels; 0 if the separator is part of names.

    Labels are those that occur in different combinations: their number is not above that of the combinations.
    """
    several = sum(count for value, count in column.counts.items() if separator in value.strip(separator))
    combinations = {frozenset(part.strip() for part in value.split(separator)) for value in column.counts}
    parts = Counter(part for each in combinations for part in each if part)
    recurring = parts and max(parts.values()) > 1 and len(parts) <= len(combinations)
    share = several / len(column.values)
    return share if recurring and share >= _LEAST_SEPARATED else 0.0

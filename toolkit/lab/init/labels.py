"""What a column of labels most likely means: classes, several labels, or numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from toolkit.api.batch import BadRow
from toolkit.data.values import parse_number, vector
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
_SEPARATORS = (",", ";", "|", "\n", "\t", "、")
_LEAST_SEPARATED = 0.05
"""Smallest share of values with several labels."""
_MOST_CHARACTERS = 100
_MOST_CLASSES = 500

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


@dataclass(frozen=True)
class LabelKind:
    """The meaning of a label column."""

    problem_type: str  # `task.problem_type`
    reason: str  # why
    separator: str | None = None  # `task.label_separator`, or None where it does not matter
    decimal: str | None = None  # `task.decimal`, or None where it does not matter
    vector: int = 0  # length of vectors of 0 and 1, whose places have no names


def can_be_label(column: ColumnProfile) -> bool:
    """Whether a column can be a label: numbers that are no ids, or values that repeat."""
    if column.kind in (TEXTS, NUMBERS) or column.lists or column.amounts or _vectors(column):
        return True
    if column.kind == OBJECT:
        flags = [flag for value in column.values for flag in value.values()]
        return all(flag is None or (isinstance(flag, int) and flag in (0, 1)) for flag in flags)
    if column.kind in (DATE, MIXED, NOTHING, *FILES.values()) or len(column.counts) < 2:
        return False
    if column.kind in (WHOLE, NUMBER):
        return column.kind == NUMBER or not column.is_unique
    repeats = len(column.counts) <= min(_MOST_CLASSES, len(column.values) / 2)
    return repeats and column.mean_characters <= _MOST_CHARACTERS


_MISSING = {"", "-", "--", "?", "k.a.", "n.a.", "n/a", "na", "nan", "none", "null", "unknown", "unbekannt"}
_YES_NO = {"yes", "no", "y", "n", "ja", "nein", "oui", "non", "x", "true", "false", "0", "1"}
_LEAST_NUMBERS = 0.5
"""Share of values with a decimal or thousands separator that makes the others numbers, too."""


def is_flag(values: Iterable[str]) -> bool:
    """Whether all values are words for yes and no, or 0 and 1."""
    texts = {value.strip().lower() for value in values}
    return texts <= _YES_NO or vector(list(texts)) is not None


def doubtful(column: ColumnProfile, given: Mapping[str, str]) -> str | None:
    """Returns why labels are no classes and cannot be read as numbers or vectors, and what to do; None if they can."""
    texts = [str(value).strip() for value in column.values]
    parts = [re.split(r"[,;|/ -]", text) if re.search(r"[,;|/ -]", text) else list(text) for text in texts]
    alike = len({len(each) for each in parts}) == 1 and len(parts[0]) > 1 and all(map(is_flag, parts))
    if alike and not label_kind(column).vector and any(text[0] == "0" or not text.isdecimal() for text in texts):
        return (
            f"{column.name!r} seems to hold vectors of yes and no, such as {texts[0]!r}. Write them as 0,1,0 and name "
            "their places in task.labels"
        )
    if column.kind in (WHOLE, NUMBER):
        dotted = [text for text in texts if "." in text]
        thousands = all(re.fullmatch(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", text) for text in dotted)
        if dotted and len(dotted) < len(texts) and thousands and "task.decimal" not in given:
            return (
                f"{column.name!r} may hold thousands, such as {dotted[0]!r}, or decimals. Pass task.decimal=, if they "
                "are thousands, else task.decimal=."
            )
    units = {re.sub(r"[\d.,'\s()+\u2212-]", "", text) for text in texts} if column.amounts else set()
    if len(units) > 1 and ("%" in units or len(units - {""}) > 1):
        return f"{column.name!r} mixes units: {', '.join(sorted(map(repr, units)))}. Write all in one, without its sign"
    if column.kind != TEXT or label_kind(column).problem_type != SINGLE:
        return None
    wrong = min(([text for text in texts if not _is_number(text, decimal)] for decimal in (".", ",")), key=len)
    points = sum(bool(re.search(r"\d[.,][\d-]", text)) and len(text) <= 20 for text in texts) / len(texts)
    mostly = len(wrong) <= 0.2 * len(texts) and {text.lower() for text in wrong} <= _MISSING
    if not mostly and points < _LEAST_NUMBERS:
        return None
    shown = f"such as {wrong[0]!r}" if wrong else "with either separator"
    return (
        f"{column.name!r} seems to hold numbers, and some cannot be read, {shown}. Write them as 1250.5 or 1.250,5 "
        "(task.decimal), without units, and leave those that are not known empty"
    )


def _is_number(text: str, decimal: str) -> bool:
    with suppress(BadRow):
        parse_number(text, decimal)
        return True
    return False


def merged(counts: Mapping[str, int]) -> dict[str, str]:
    """Maps labels to the most frequent of those that differ from them only in case and blanks."""
    alike: dict[str, list[str]] = {}
    for label in counts:
        alike.setdefault(" ".join(label.casefold().split()), []).append(label)
    most = {label: max(group, key=lambda name: counts[name]) for group in alike.values() for label in group}
    return {label: name for label, name in most.items() if label != name}


def label_kind(column: ColumnProfile) -> LabelKind:
    """Returns what a label column most likely means."""
    if found := _vectors(column):
        return found
    if column.lists or column.kind in (TEXTS, NUMBERS, OBJECT):
        lists, what = column.lists or column.values, "printed lists" if column.lists else column.kind
        numbers = not any(isinstance(value, str) for values in lists for value in values)
        equal = len(set(map(len, lists))) == 1  # others are ids of labels
        return LabelKind(REGRESSION if numbers and equal else MULTI, f"{column.name!r} holds {what}")
    if column.amounts:
        low, high = min(column.amounts), max(column.amounts)
        why = f"amounts from {low:g} to {high:g}, such as {column.values[0]!r}"
        return LabelKind(REGRESSION, why, decimal=column.decimal)
    different = len({float(value) for value in column.numbers}) if column.numbers else len(column.counts)
    if column.kind == WHOLE and different <= MOST_WHOLE_CLASSES:
        return LabelKind(SINGLE, f"whole numbers with at most {MOST_WHOLE_CLASSES} values are classes")
    if column.kind in (WHOLE, NUMBER):
        low, high = min(column.numbers), max(column.numbers)
        few = f"whole numbers with at most {MOST_WHOLE_CLASSES} values would be classes"
        return LabelKind(REGRESSION, f"{column.kind} from {low:g} to {high:g} with {different} values; {few}")
    for separator in _SEPARATORS if column.kind == TEXT else ():
        if share := _separated(column, separator):
            reason = f"{share:.0%} of the values are several labels, separated by {separator!r}"
            return LabelKind(MULTI, reason, separator)
    return LabelKind(SINGLE, "true or false" if column.kind == BOOLEAN else "one name per row")


def _vectors(column: ColumnProfile) -> LabelKind | None:
    """Returns the kind of vectors of 0 and 1, as lists or as text with separators; None if the column holds others."""
    for separator in (None, *_SEPARATORS, " "):
        parts = column.lists or column.values
        if separator is not None:
            parts = [value.split(separator) if isinstance(value, str) else [] for value in column.values]
        sizes = {len(each) if isinstance(each, list) else 0 for each in parts}
        if len(sizes) == 1 and max(sizes) > 1 and all(map(vector, parts)):
            return LabelKind(MULTI, f"{column.name!r} holds vectors of 0 and 1", separator, vector=max(sizes))
    return None


def _separated(column: ColumnProfile, separator: str) -> float:
    """Returns the share of values with several labels; 0 if the separator is part of names.

    The parts are labels if they recur: there are at most as many as there are combinations of them.
    """
    several = sum(count for value, count in column.counts.items() if separator in value.strip(separator))
    combinations = {frozenset(part.strip() for part in value.split(separator)) for value in column.counts}
    parts = Counter(part for each in combinations for part in each if part)
    recurring = parts and max(parts.values()) > 1 and len(parts) <= len(combinations)
    share = several / len(column.values)
    return share if recurring and share >= _LEAST_SEPARATED else 0.0

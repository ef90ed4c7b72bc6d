"""What a metric is called, and how to read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A metric by name.

    Args:
        name: without the prefix of an evaluation set.
        greater_is_better: whether a greater value is better.
        per_class: whether there is one value per class, which tables of a run leave out.
        unit: of its values, for instance `s` or `B`; empty for a plain number.
    """

    name: str
    greater_is_better: bool = True
    per_class: bool = False
    unit: str = ""

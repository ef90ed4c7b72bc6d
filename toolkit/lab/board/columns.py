"""The columns of a table of runs: the settings in which they differ, and their results."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from toolkit.base.console import format_value, shorten
from toolkit.document.blocks import Cell, Choice, Table
from toolkit.lab.board.entry import Entry, text_of

FACTS = ("recipe", "engine", "processes")
MEASURED = ("train_loss", "loss", "steps", "train_seconds", "train_items_per_second", "peak_memory_bytes")
"""Results that are not scores, in their order."""
SUFFIXES = ("_low", "_high", "_baseline")
"""Ends of the names of a score's interval and of what a constant answer scores."""
PLACES = ("run", "tracking.", "checkpoint.", "output_dir")
"""Names, or their beginnings, that are no columns unless they are asked for."""


def default_columns(entries: Sequence[Entry]) -> list[str]:
    """Returns the facts and settings in which runs differ, the metrics that select their best models, and the rest.

    Intervals of scores, scores of single classes and figures that only some kinds of runs have are left out.
    """
    names = list(dict.fromkeys(name for entry in entries for name in entry.record.part("setting")))
    settings = [name for name in names if not name.startswith(PLACES) and name not in FACTS]
    varied = [name for name in (*FACTS, *settings) if _differs(name, entries)]
    results = dict.fromkeys(name for entry in entries for name in entry.values if name not in entry.record.settings)
    scores = [name for name in results if name.startswith(("eval_", "test_")) and _is_plain(name)]
    best = dict.fromkeys(str(entry.record.facts.get("metric_for_best_model")) for entry in entries)
    first = [name for name in best if name in scores]
    return [*varied, *first, *(n for n in scores if n not in best), *(name for name in MEASURED if name in results)]


def _is_plain(name: str) -> bool:
    return "/" not in name and not name.endswith(SUFFIXES)


def _differs(name: str, entries: Iterable[Entry]) -> bool:
    return len({json.dumps(entry.values.get(name), sort_keys=True, default=str) for entry in entries}) > 1


def table(entries: Sequence[Entry], columns: Sequence[str]) -> Table:
    """Returns the table of runs, whose rows can be sorted, and by which the curves of the page are chosen."""
    rows = [
        [Choice(entry.name, place), entry.state, *(cell(entry.values.get(name)) for name in columns)]
        for place, entry in enumerate(entries)
    ]
    return Table(["run", "state", *columns], rows, sortable=True)


def cell(value: Any) -> Any:
    """Returns a value as a cell of a table."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(format_value(value), value)
    return shorten(text_of(value), 60)


def as_csv(entries: Sequence[Entry], columns: Sequence[str]) -> str:
    """Returns the table of runs as CSV, with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "state", *columns])
    for entry in entries:
        writer.writerow([entry.name, entry.state, *(text_of(entry.values.get(name)) for name in columns)])
    return text.getvalue()

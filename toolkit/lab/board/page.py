"""The page of many runs: their curves in the same charts, and a table by which they are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.base.console import counted
from toolkit.document import render as page
from toolkit.document.blocks import Overlay, Points, Section, Text
from toolkit.document.charts import MOST_POINTS as MOST
from toolkit.document.charts import thinned
from toolkit.lab.board.columns import table
from toolkit.lab.board.entry import OF_A_LINE, Entry

POINTS = 200_000
"""Largest number of points of a page; of longer curves, the lowest and the highest of each interval are kept."""
FEWEST = 50
"""Points that each curve may have in any case."""
FIRST = 6
"""Number of runs whose curves are shown at first."""
ORDER = ("loss", "eval_loss")


def render(entries: Sequence[Entry], columns: Sequence[str], title: str) -> str:
    """Returns the page as one HTML file.

    Args:
        entries: the runs.
        columns: names of the columns of the table.
        title: title of the page.
    """
    unfinished = sum(not entry.record.finished for entry in entries)
    lead = counted(len(entries), "run") + (f", {unfinished} not finished" if unfinished else "")
    drawn = overlay(entries)
    how = (
        "Choose runs by their boxes in the table, which a click on the name of a column sorts. Training time is that "
        "of all steps, without evaluations and checkpoints. Smoothed curves are running means, with the values behind."
    )
    return page.render_html(
        title, lead, [Section("Curves", [Text(how), drawn]), Section("Runs", [table(entries, columns)])]
    )


def overlay(entries: Sequence[Entry]) -> Overlay:
    """Returns the curves of all runs."""
    curves: dict[str, dict[int, Points]] = {}
    for place, entry in enumerate(entries):
        clock = _clock(entry.lines)
        for name in dict.fromkeys(name for line in entry.lines for name in line if _is_curve(name, line[name])):
            curves.setdefault(name, {})[place] = _points(name, entry.lines, clock)
    best = dict.fromkeys(str(entry.record.facts.get("metric_for_best_model")) for entry in entries)
    ranks = {name: rank for rank, name in enumerate([*ORDER, *best])}
    names = sorted(curves, key=lambda name: (ranks.get(name, len(ranks)), not name.startswith("eval_")))
    limit = min(MOST, max(FEWEST, POINTS // max(1, sum(map(len, curves.values())))))
    charts = {name: {run: _thinned(points, limit) for run, points in curves[name].items()} for name in names}
    shown = [name for name in names if name in ranks] or names[:1]
    return Overlay([entry.name for entry in entries], charts, shown, list(range(len(entries)))[:FIRST])


def _is_curve(name: str, value: Any) -> bool:
    return name not in OF_A_LINE and "/" not in name and isinstance(value, int | float) and not isinstance(value, bool)


def _clock(lines: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Returns steps and the seconds of training up to each, from the items and the speed of the training lines."""
    steps, seconds = [0.0], [0.0]
    for line in lines:
        items, speed = line.get("num_items"), line.get("interval_items_per_second")
        if items and speed:
            steps.append(float(line["step"]))
            seconds.append(seconds[-1] + items / speed)
    return steps, seconds


def _points(name: str, lines: Sequence[Mapping[str, Any]], clock: tuple[list[float], list[float]]) -> Points:
    own = [line for line in lines if name in line]
    steps = [line["step"] for line in own]
    seconds = np.interp(steps, *clock).tolist()
    return steps, seconds, [line[name] for line in own]


def _thinned(points: Points, limit: int) -> Points:
    """Returns at most about `limit` points, with every peak, and numbers as short as a chart needs them."""
    steps, seconds, values = points
    kept = thinned(np.array([np.nan if value is None else value for value in values], dtype=float), limit)
    return (
        [steps[i] for i in kept],
        [float(f"{seconds[i]:.6g}") for i in kept],
        [None if (value := values[i]) is None else float(f"{value:.6g}") for i in kept],
    )

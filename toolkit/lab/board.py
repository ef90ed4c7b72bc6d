"""The table and page of runs: what is known of each, by the names of `--where` and `--columns`."""

from __future__ import annotations

import csv
import io
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.base.console import counted, format_value, shorten
from toolkit.base.errors import InputError
from toolkit.base.run_folder import RunFolder
from toolkit.config.messages import did_you_mean
from toolkit.document.blocks import Cell, Choice, Overlay, Points, Section, Table, Text
from toolkit.document.charts import MOST_POINTS as MOST
from toolkit.document.charts import thinned
from toolkit.document.render import render_html
from toolkit.report.runs import Record
from toolkit.tracking.jsonl import readable_lines

OF_A_LINE = ("step", "epoch", "num_items")
"""Numbers of a line of `metrics.jsonl` that describe the line itself."""


@dataclass(frozen=True)
class Entry:
    """A run in a table of runs."""

    name: str  # path of its folder, relative to the folder of all runs
    record: Record  # its record
    lines: Sequence[Mapping[str, Any]]  # the lines of its `metrics.jsonl` that can be read
    values: Mapping[str, Any]  # every setting, fact, and result by name

    @property
    def state(self) -> str:
        """Whether the run is finished, in words."""
        if self.record.finished:
            return "finished"
        planned = self.record.facts.get("total_steps")
        of_all = f" of {planned:,}" if isinstance(planned, int) else ""
        return f"step {self.values['steps']:,}{of_all}"


def entry_of(record: Record, folder: Path) -> Entry:
    """Returns what is known of a run, whose name is relative to the folder of all runs.

    Raises InputError if its `metrics.jsonl` cannot be read.
    """
    file = RunFolder(record.folder).metrics
    try:
        lines = readable_lines(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    name = record.folder.name if record.folder == folder else record.folder.relative_to(folder).as_posix()
    facts = {
        "run": name,
        "recipe": Path(record.facts["recipe"]).stem,
        "processes": record.facts["num_processes"],
        "finished": record.finished,
    }
    results = record.part("result") if record.finished else _so_far(lines)
    return Entry(name, record, lines, {**record.part("setting"), **facts, **results})


def _so_far(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the last value of each number of an unfinished run."""
    found: dict[str, Any] = {"steps": 0}
    for line in lines:
        found |= {name: value for name, value in line.items() if name not in OF_A_LINE}
        found["steps"] = int(line["step"])
    return found


def text_of(value: Any) -> str:
    """Returns a value as text: numbers exactly, lists and mappings as JSON, nothing for a missing one."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def require_known(names: Iterable[str], entries: Sequence[Entry], option: str) -> None:
    """Refuses names that no run has, and suggests similar ones; the error names the option.

    Raises InputError if there is no such setting or result.
    """
    known = dict.fromkeys(name for entry in entries for name in entry.values)
    for name in names:
        if name not in known:
            near = did_you_mean(name, known, 3) or "; settings have dotted keys, such as train.learning_rate"
            raise InputError(f"{option}: received {name!r}, no setting or result of these runs{near}")


_FORM = re.compile(r"\s*([^\s=!<>]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*")
_WORDS = {"true": True, "false": False, "null": None}
ORDERED: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Comparisons of numbers; `=`, `==` and `!=` compare any values."""


@dataclass(frozen=True)
class Condition:
    """A condition on one setting or result."""

    name: str
    sign: str
    value: Any

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Returns whether a run meets the condition; one without such a number is in no order with any."""
        found = values.get(self.name)
        if self.sign in ORDERED:
            if not isinstance(found, int | float) or isinstance(found, bool):
                return False
            return ORDERED[self.sign](found, self.value)
        return _equal(found, self.value) == (self.sign != "!=")


def parse(text: str) -> Condition:
    """Reads a condition.

    Raises:
        InputError: if it is not a name, a comparison and a value, or compares the order of something else than numbers.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InputError(
            f"--where: received {text!r}, expected a name, one of = != < <= > >=, and a value, such as "
            "'train.learning_rate>1e-4' (quoted, and after FOLDER)"
        )
    name, sign, words = match.groups()
    value = _value(words)
    if sign in ORDERED and not isinstance(value, float):
        raise InputError(f"--where: received {text!r}, but {words!r} is not a number; {sign} compares numbers")
    return Condition(name, sign, value)


def chosen(entries: Sequence[Entry], texts: Sequence[str]) -> list[Entry]:
    """Returns the runs that meet all conditions.

    Raises InputError if a condition cannot be read, or names what no run has.
    """
    conditions = [parse(text) for text in texts]
    require_known([condition.name for condition in conditions], entries, "--where")
    return [entry for entry in entries if all(condition.holds(entry.values) for condition in conditions)]


def _value(words: str) -> Any:
    if words in _WORDS:
        return _WORDS[words]
    try:
        return float(words)
    except ValueError:
        return words.strip("'\"")


def _equal(found: Any, wanted: Any) -> bool:
    if wanted is None or isinstance(wanted, bool):
        return found is wanted
    if isinstance(wanted, float):
        return type(found) in (int, float) and found == wanted
    return text_of(found) == wanted


FACTS = ("recipe", "engine", "processes")
MEASURED = ("train_loss", "loss", "steps", "train_seconds", "train_items_per_second", "peak_memory_bytes")
"""Results that are not scores, in their order."""
SUFFIXES = ("_low", "_high", "_baseline")
"""Ends of the names of a score's interval and of what a constant answer scores."""
PLACES = ("run", "tracking.", "checkpoint.", "output_dir")
"""Names, or their beginnings, that are no columns unless they are asked for."""


def default_columns(entries: Sequence[Entry]) -> list[str]:
    """Returns the facts and settings in which runs differ, the metrics that select their best models, and the rest.

    Intervals of scores, scores of single classes and figures that only some kinds of runs have are not among them.
    """
    names = list(dict.fromkeys(name for entry in entries for name in entry.record.part("setting")))
    settings = [name for name in names if not name.startswith(PLACES) and name not in FACTS]
    texts = {name: {json.dumps(each.values.get(name), sort_keys=True, default=str) for each in entries}
             for name in (*FACTS, *settings)}  # fmt: skip
    varied = [name for name, different in texts.items() if len(different) > 1]
    results = dict.fromkeys(name for entry in entries for name in entry.values if name not in entry.record.settings)
    scores = [name for name in results if name.startswith(("eval_", "test_"))]
    scores = [name for name in scores if "/" not in name and not name.endswith(SUFFIXES)]
    best = dict.fromkeys(str(entry.record.facts.get("metric_for_best_model")) for entry in entries)
    first = [name for name in best if name in scores]
    return [*varied, *first, *(n for n in scores if n not in best), *(name for name in MEASURED if name in results)]


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


POINTS = 200_000
"""Largest number of points of a page; of longer curves, the lowest and the highest of each interval are kept."""
FEWEST = 50
"""Points that each curve may have in any case."""
FIRST = 6
"""Number of runs whose curves are shown at first."""
ORDER = ("loss", "eval_loss")


def render(entries: Sequence[Entry], columns: Sequence[str], title: str) -> str:
    """Returns the page as one HTML file; the columns are those of its table."""
    unfinished = sum(not entry.record.finished for entry in entries)
    lead = counted(len(entries), "run") + (f", {unfinished} not finished" if unfinished else "")
    drawn = overlay(entries)
    how = (
        "Choose runs by their boxes in the table, which a click on the name of a column sorts. Training time is that "
        "of all steps, without evaluations and checkpoints. Smoothed curves are running means, with the values behind."
    )
    return render_html(title, lead, [Section("Curves", [Text(how), drawn]), Section("Runs", [table(entries, columns)])])


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

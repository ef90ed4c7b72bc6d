"""Shows the progress of a comparison on the terminal, and its results as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import JustifyMethod
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text as RichText

from toolkit.base.console import rich_console, shorten
from toolkit.base.errors import RunError
from toolkit.lab.compare import costs, strategies
from toolkit.lab.compare.best import keep_best
from toolkit.lab.compare.notes import busy_at_start, kept, notes
from toolkit.lab.compare.running import run_once, run_repeats
from toolkit.lab.compare.runs import Comparison, Repeat, trained_run
from toolkit.lab.compare.table import excuse, labels, legend, metric_table, table

MARKS = {"waiting": ".", "running": "running", "kept": "done before", "failed": "failed", "skipped": "-"}
MAX_SEEDS = 4
"""Maximum number of seeds with a column each; for more seeds, a column shows the number of finished runs."""


def run_and_show(comparison: Comparison, repeats: Sequence[Repeat], load: float | None) -> None:
    """Runs what is waiting and shows its progress: as a live table on a terminal, otherwise as a line per run.

    Args:
        comparison: the comparison.
        repeats: all runs.
        load: load average of the machine before the first run; None if nothing is waiting.
    """
    console = rich_console()
    if warning := busy_at_start(load, os.cpu_count() or 1):
        console.print(RichText(warning))
    if sys.stdout.isatty():
        with Live(_progress(comparison, repeats), console=console, auto_refresh=False) as live:
            run_repeats(comparison, repeats, lambda: live.update(_progress(comparison, repeats), refresh=True))
        return
    told = {id(repeat) for repeat in repeats if repeat.state != "waiting"}
    kept = sum(repeat.state == "kept" for repeat in repeats)
    print(f"{len(repeats) - len(told)} runs to do, {kept} done before", flush=True)

    def tell() -> None:
        for repeat in repeats:
            if id(repeat) not in told and repeat.state not in ("waiting", "running"):
                told.add(id(repeat))
                place = f"[{len(told)}/{len(repeats)}] {repeat.variant.name}, seed {repeat.seed}"
                console.print(RichText(f"{place}: {_mark(repeat)}{f': {repeat.reason}' if repeat.reason else ''}"))

    run_repeats(comparison, repeats, tell)


def keep_and_show(comparison: Comparison, repeats: Sequence[Repeat]) -> Repeat | None:
    """Keeps the model of the best run, and returns the run; None without `--keep-best` or if no run has the metric.

    Raises:
        RunError: if the run had to be repeated, because an earlier comparison did not keep its model, and failed.
    """
    best = keep_best(comparison, repeats)
    if best is not None and not trained_run(comparison, best).model.is_dir():
        what = f"{best.variant.name}, seed {best.seed}"
        print(f"the best run, {what}, is trained again: an earlier comparison did not keep its model", flush=True)
        run_once(comparison, best)
        if best.state == "failed":
            raise RunError(f"the best run, {what}, failed when it was trained again: {best.reason}")
    return best


def show_result(found: Mapping[str, Any]) -> None:
    """Prints the table of results, 80 columns wide if the output is not a terminal."""
    titles, rows = table(found)
    console = rich_console()
    console.print()
    for number, variant in enumerate(found["variants"] if titles[0] == "#" else (), start=1):
        console.print(RichText(f"{number} {variant['name']}"))
    console.print(_shown(titles, rows, "right"))
    console.print(RichText(legend(found)))
    if several := metric_table(found):
        console.print()
        console.print(_shown(*several, "right"))
    if spent := costs.cost_lines(found, labels(found)[1]):
        console.print()
        console.print(_shown(*spent, "right"))
    figures: JustifyMethod = "right"
    for more in strategies.strategy_lines(found):
        console.print()
        console.print(_shown(*more, figures))
        figures = "left"  # the second table has sentences
    for variant in found["variants"]:
        if text := excuse(found, variant):
            console.print(RichText(text))
    if any(notes(found)):
        console.print()
    for note in notes(found):
        console.print(RichText(note))
    if best := kept(found):
        sentence, command = best
        console.print(RichText(f"\n{sentence}"))
        print(f"  {command}")  # in one line, so that it can be copied


def _shown(titles: Sequence[str], rows: Sequence[Sequence[str]], justify: JustifyMethod) -> RichTable:
    shown = RichTable(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        shown.add_column(RichText(title), justify="left" if place == 0 else justify, overflow="fold")
    for row in rows:
        shown.add_row(*map(RichText, row))
    return shown


def _progress(comparison: Comparison, repeats: Sequence[Repeat]) -> RichTable:
    shown = RichTable(box=None, pad_edge=False)
    shown.add_column("variant", overflow="fold")
    seeds = list(comparison.seeds)
    for seed in seeds[:MAX_SEEDS]:
        shown.add_column(f"seed {seed}", justify="right")
    if len(seeds) > MAX_SEEDS:
        shown.add_column("all", justify="right")
    for variant in comparison.checked.variants:
        own = {repeat.seed: repeat for repeat in repeats if repeat.variant.name == variant.name}
        cells = [_mark(own[seed]) for seed in seeds[:MAX_SEEDS]]
        if len(seeds) > MAX_SEEDS:
            cells.append(f"{sum(repeat.state in ('done', 'kept') for repeat in own.values())}/{len(seeds)}")
        shown.add_row(RichText(shorten(variant.name, 60)), *cells)
    return shown


def _mark(repeat: Repeat) -> str:
    return f"{repeat.seconds:.0f} s" if repeat.state == "done" else MARKS[repeat.state]

"""Shows the progress of a comparison on the terminal, and its results as a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from toolkit.base.console import rich_console, shorten
from toolkit.lab.compare import strategies
from toolkit.lab.compare.running import Comparison, Repeat, run_repeats
from toolkit.lab.compare.table import LEGEND, excuse, table

MARKS = {"waiting": ".", "running": "running", "kept": "done before", "failed": "failed", "left out": "-"}
MAX_SEEDS = 4
"""Maximum number of seeds with a column each; for more seeds, a column shows the number of finished runs."""


def run_and_show(comparison: Comparison, repeats: Sequence[Repeat]) -> None:
    """Runs what is waiting and shows its progress: as a live table on a terminal, otherwise as a line per run."""
    console = rich_console()
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
                console.print(Text(f"{place}: {_mark(repeat)}{f': {repeat.reason}' if repeat.reason else ''}"))

    run_repeats(comparison, repeats, tell)


def show_result(found: Mapping[str, Any]) -> None:
    """Prints the table of results, 80 columns wide if the output is not a terminal."""
    titles, rows = table(found)
    console = rich_console()
    console.print()
    for number, variant in enumerate(found["variants"] if titles[0] == "#" else (), start=1):
        console.print(Text(f"{number} {variant['name']}"))
    console.print(_shown(titles, rows, "right"))
    console.print(Text(LEGEND))
    figures: JustifyMethod = "right"
    for more in strategies.lines(found):
        console.print()
        console.print(_shown(*more, figures))
        figures = "left"  # the second table has sentences
    for variant in found["variants"]:
        if text := excuse(found, variant):
            console.print(Text(text))


def _shown(titles: Sequence[str], rows: Sequence[Sequence[str]], justify: JustifyMethod) -> Table:
    shown = Table(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        shown.add_column(Text(title), justify="left" if place == 0 else justify, overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown


def _progress(comparison: Comparison, repeats: Sequence[Repeat]) -> Table:
    shown = Table(box=None, pad_edge=False)
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
        shown.add_row(Text(shorten(variant.name, 60)), *cells)
    return shown


def _mark(repeat: Repeat) -> str:
    return f"{repeat.seconds:.0f} s" if repeat.state == "done" else MARKS[repeat.state]

"""What a person sees of a comparison: each run while they go on, and the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from toolkit.base.console import rich_console, shorten
from toolkit.lab.compare.running import Comparison, Job, run_jobs
from toolkit.lab.compare.table import LEGEND, excuse, table

MARKS = {"waiting": ".", "running": "running", "kept": "done before", "failed": "failed", "left out": "-"}
MOST_SEEDS = 4
"""Runs of each variant that stand beside each other in 80 columns; of more, only their number is shown."""


def run_and_show(comparison: Comparison, jobs: Sequence[Job]) -> None:
    """Runs what is waiting, with a table that follows on a terminal, and a line for each run elsewhere."""
    console = rich_console()
    if sys.stdout.isatty():
        with Live(_progress(comparison, jobs), console=console, auto_refresh=False) as live:
            run_jobs(comparison, jobs, lambda: live.update(_progress(comparison, jobs), refresh=True))
        return
    told = {id(job) for job in jobs if job.state != "waiting"}
    kept = sum(job.state == "kept" for job in jobs)
    print(f"{len(jobs) - len(told)} runs to do, {kept} done before", flush=True)

    def tell() -> None:
        for job in jobs:
            if id(job) not in told and job.state not in ("waiting", "running"):
                told.add(id(job))
                place = f"[{len(told)}/{len(jobs)}] {job.variant.name}, seed {job.seed}"
                console.print(Text(f"{place}: {_mark(job)}{f': {job.reason}' if job.reason else ''}"))

    run_jobs(comparison, jobs, tell)


def show_result(found: Mapping[str, Any]) -> None:
    """Prints the table of results, 80 columns wide where there is no terminal."""
    titles, rows = table(found)
    shown = Table(box=None, pad_edge=False, show_lines=False)
    for place, title in enumerate(titles):
        shown.add_column(Text(title), justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    console = rich_console()
    console.print()
    for number, variant in enumerate(found["variants"] if titles[0] == "#" else (), start=1):
        console.print(Text(f"{number} {variant['name']}"))
    console.print(shown)
    console.print(Text(LEGEND))
    for variant in found["variants"]:
        if text := excuse(found, variant):
            console.print(Text(text))


def _progress(comparison: Comparison, jobs: Sequence[Job]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("variant", overflow="fold")
    seeds = list(comparison.seeds)
    for seed in seeds[:MOST_SEEDS]:
        shown.add_column(f"seed {seed}", justify="right")
    if len(seeds) > MOST_SEEDS:
        shown.add_column("all", justify="right")
    for variant in comparison.checked.variants:
        own = {job.seed: job for job in jobs if job.variant.name == variant.name}
        cells = [_mark(own[seed]) for seed in seeds[:MOST_SEEDS]]
        if len(seeds) > MOST_SEEDS:
            cells.append(f"{sum(job.state in ('done', 'kept') for job in own.values())}/{len(seeds)}")
        shown.add_row(Text(shorten(variant.name, 60)), *cells)
    return shown


def _mark(job: Job) -> str:
    return f"{job.seconds:.0f} s" if job.state == "done" else MARKS[job.state]

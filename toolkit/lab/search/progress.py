"""Shows a search on the terminal: each trial that is over, and at the end what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text as RichText

from toolkit.base.console import format_duration, format_value, rich_console, shorten
from toolkit.lab.search.report import STATES, metric_of, verdict

WIDTH = 80
MOST_ROWS = 20
"""Trials that the table shows: the best ones."""


def tell(number: int, result: Mapping[str, Any], overrides: Sequence[str], metric: str) -> None:
    """Prints a line about a trial that is over."""
    value = "" if result.get("value") is None else f" {metric.removeprefix('eval_')} {format_value(result['value'])}"
    head = f"trial {number}: {result['state']}{value}, {format_duration(result.get('seconds', 0.0))}"
    settings = ", ".join(_short(override) for override in overrides)
    print(fill(f"{head}; {settings}", WIDTH, subsequent_indent="  "), flush=True)
    if result.get("reason"):
        print(fill(shorten(result["reason"].split("\n")[0], 300), WIDTH, initial_indent="  ", subsequent_indent="  "),
              flush=True)  # fmt: skip


def _short(override: str) -> str:
    """Returns an override without its section, and a number with four digits."""
    key, _, text = override.partition("=")
    try:
        text = format_value(float(text))
    except ValueError:
        text = shorten(text, 40)
    return f"{key.rpartition('.')[2]}={text}"


def show(found: Mapping[str, Any]) -> None:
    """Prints the best trials and what can be said of the best one."""
    console = rich_console()
    console.print()
    sign = -1 if found["metric"]["greater_is_better"] else 1
    rows = sorted(found["trials"], key=lambda row: (row["value"] is None, sign * (row["value"] or 0.0), row["number"]))
    table = RichTable(box=None, pad_edge=False)
    table.add_column("trial", justify="right")
    table.add_column("state")
    table.add_column(metric_of(found), justify="right")
    table.add_column("settings", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for row in rows[:MOST_ROWS]:
        value = "" if row["value"] is None else format_value(row["value"])
        settings = ", ".join(map(_short, row["overrides"]))
        table.add_row(
            *map(RichText, (str(row["number"]), row["state"], value, settings, format_duration(row["seconds"])))
        )
    console.print(table)
    if len(rows) > MOST_ROWS:
        print(f"and {len(rows) - MOST_ROWS} more")
    counts = ", ".join(f"{found['counts'][state]} {state}" for state in STATES if found["counts"].get(state))
    print(f"\n{counts or 'no trials yet'} of {found['asked']} asked")
    for sentence in verdict(found):
        print(fill(sentence, WIDTH, break_long_words=False))
    if found["best"] is not None:
        print("\n".join(["", *(f"  {override}" for override in found["best"]["overrides"])]))

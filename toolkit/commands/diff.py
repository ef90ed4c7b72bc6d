"""Show the differences between two runs: `toolkit diff RUN_A RUN_B`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.files import expanded

if TYPE_CHECKING:
    from toolkit.report.runs import Difference

TITLES = {
    "setting": "settings",
    "data": "data",
    "version": "versions",
    "machine": "machines",
    "result": "results (times and memory left out)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the two runs."""
    parser.add_argument("one", metavar="RUN_A", help="output folder of a run")
    parser.add_argument("other", metavar="RUN_B", help="output folder of another run")


def work(arguments: argparse.Namespace) -> None:
    """Prints the differences between two runs.

    Raises:
        InputError: if a folder holds no run.
    """
    from toolkit.report.runs import differences, read_record

    one, other = (read_record(expanded(folder)) for folder in (arguments.one, arguments.other))
    found = differences(one, other)
    if not found:
        print("no differences in settings, data, versions, machines or results")
    show(found, arguments.one, arguments.other)


def show(found: Sequence[Difference], one: str, other: str) -> None:
    """Prints one table of differences per section."""
    from rich.table import Table

    from toolkit.base.console import format_value, plain, rich_console, shorten

    console = rich_console()
    for section, title in TITLES.items():
        rows = [difference for difference in found if difference.section == section]
        if not rows:
            continue
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("", shorten(Path(one).name, 24), shorten(Path(other).name, 24)):
            table.add_column(plain(name), overflow="fold")
        for row in rows:
            values = (shorten(format_value(value), 40) for value in (row.one, row.other))
            table.add_row(plain(row.name), *map(plain, values))
        console.print(table)

"""List runs and compare them on a page: `toolkit runs FOLDER --html board.html`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.files import expanded
from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.lab.board import Entry
    from toolkit.report.runs import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the folder, which runs and columns to show, and the files to write."""
    parser.add_argument(
        "folder", nargs="?", default="outputs", metavar="FOLDER", help="folder that contains runs (default: outputs)"
    )
    parser.add_argument("--sort", metavar="FIGURE", help="sort by a metric, for example eval_accuracy")
    parser.add_argument(
        "--where", nargs="+", action="extend", default=[], metavar="CONDITION",
        help="only runs that meet all of these, for example 'train.learning_rate>1e-4' finished=true (also != < <= >=)",
    )  # fmt: skip
    parser.add_argument(
        "--columns", nargs="+", action="extend", default=[], metavar="NAME",
        help="settings and results to show, for example train.optim eval_accuracy (default: in files, the settings in "
        "which the runs differ, and their results)",
    )  # fmt: skip
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with a sortable table and the curves of chosen runs"
    )
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")


def work(arguments: argparse.Namespace) -> None:
    """Prints a table of the runs in a folder and its subfolders, and the spread of runs that differ only in the seed.

    Raises:
        InputError: if there are no runs, or an option names what they do not have, or a file cannot be written.
    """
    from toolkit.base.console import say
    from toolkit.base.errors import InputError
    from toolkit.lab.board import chosen, entry_of, refuse_unknown
    from toolkit.report.runs import find_records, repeats

    files = {name: options.output_file(path, f"--{name}") for name in ("html", "csv")
             if (path := getattr(arguments, name))}  # fmt: skip
    folder = expanded(arguments.folder)
    every = [entry_of(record, folder) for record in find_records(folder)]
    if not every:
        raise InputError(f"{folder}: contains no runs (tried {folder.absolute()})")
    refuse_unknown(arguments.columns, every, "--columns")
    entries = chosen(every, arguments.where)
    if not entries:
        raise InputError(f"--where: none of the {len(every)} runs in {folder} meets {' and '.join(arguments.where)}")
    if arguments.sort:
        known = {name for entry in entries for name in entry.record.part("result")}
        if arguments.sort not in known:
            raise InputError(f"--sort: received {arguments.sort!r}; these runs have {', '.join(sorted(known))}")
        entries.sort(key=lambda entry: _order(entry.record.part("result").get(arguments.sort)))
    _print(entries, arguments.columns, arguments.sort)
    for group in repeats([entry.record for entry in entries], arguments.sort):
        say(str(group))
    _write(entries, arguments.columns, files, folder)


def _write(entries: Sequence[Entry], names: Sequence[str], files: dict[str, Path], folder: Path) -> None:
    """Writes the page and the CSV file, if they are asked for, and says so."""
    from toolkit.base.console import say
    from toolkit.base.files import write_text
    from toolkit.lab import board

    shown = names or board.default_columns(entries)
    contents = {
        "html": lambda: board.render(entries, shown, f"Runs in {folder.absolute().name}"),
        "csv": lambda: board.as_csv(entries, shown),
    }
    for name, file in files.items():
        write_text(file, contents[name]())
        say(f"{file} has {len(entries)} runs")


def _print(entries: Sequence[Entry], columns: Sequence[str], sort: str | None) -> None:
    from rich.table import Table

    from toolkit.base.console import plain, rich_console
    from toolkit.document.blocks import shown
    from toolkit.lab.board import cell

    table = Table(box=None, pad_edge=False)
    for name in ("run", *(columns or ("recipe", "engine", "steps", "score", "time"))):
        table.add_column(plain(name), overflow="fold")
    for entry in entries:
        own = [shown(cell(entry.values.get(name))) for name in columns]
        table.add_row(*map(plain, [entry.name, *(own if columns else _row(entry.record, sort))]))
    rich_console().print(table)


def _order(value: Any) -> tuple[bool, float]:
    return value is None, float(value or 0.0)


def _row(record: Record, sort: str | None) -> list[str]:
    from toolkit.base.console import format_value

    facts, result = record.facts, record.part("result")
    engine = facts["engine"] + (f" x{facts['num_processes']}" if facts["num_processes"] > 1 else "")
    start = [Path(facts["recipe"]).stem, engine]
    if not record.finished:
        return [*start, "", "not finished", ""]
    best = facts.get("metric_for_best_model")
    shown = sort or (best if best in result else "train_loss")
    score = f"{shown} {format_value(result.get(shown))}"
    return [*start, f"{result['steps']:,}", score, f"{result['train_seconds']:,.0f} s"]

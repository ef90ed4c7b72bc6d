"""List runs: `toolkit runs FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.report.runs import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the folder."""
    parser.add_argument(
        "folder", nargs="?", default="outputs", metavar="FOLDER", help="folder that contains runs (default: outputs)"
    )
    parser.add_argument("--sort", metavar="FIGURE", help="sort by a metric, for example eval_accuracy")


def work(arguments: argparse.Namespace) -> None:
    """Prints a table of all runs in a folder and its subfolders, and the spread of runs that differ only in the seed.

    Raises:
        InputError: if there are no runs, or they do not have the metric of `--sort`.
    """
    from rich.table import Table

    from toolkit.base.console import plain, rich_console, say
    from toolkit.base.errors import InputError
    from toolkit.report.runs import find_records, repeats

    folder = Path(arguments.folder)
    records = find_records(folder)
    if not records:
        raise InputError(f"{folder}: contains no runs (tried {folder.absolute()})")
    if arguments.sort:
        known = {name for record in records for name in record.part("result")}
        if arguments.sort not in known:
            raise InputError(f"--sort: received {arguments.sort!r}; these runs have {', '.join(sorted(known))}")
        records.sort(key=lambda record: _order(record.part("result").get(arguments.sort)))
    table = Table(box=None, pad_edge=False)
    for name in ("run", "recipe", "engine", "steps", "score", "time"):
        table.add_column(name, overflow="fold")
    for record in records:
        table.add_row(*map(plain, _row(record, folder, arguments.sort)))
    rich_console().print(table)
    for group in repeats(records, arguments.sort):
        say(str(group))


def _order(value: Any) -> tuple[bool, float]:
    return value is None, float(value or 0.0)


def _row(record: Record, folder: Path, sort: str | None) -> list[str]:
    from toolkit.base.console import format_value

    facts, result = record.facts, record.part("result")
    name = str(record.folder.relative_to(folder)) if record.folder != folder else record.folder.name
    engine = facts["engine"] + (f" x{facts['num_processes']}" if facts["num_processes"] > 1 else "")
    start = [name, Path(facts["recipe"]).stem, engine]
    if not record.finished:
        return [*start, "", "not finished", ""]
    best = facts.get("metric_for_best_model")
    shown = sort or (best if best in result else "train_loss")
    score = f"{shown} {format_value(result.get(shown))}"
    return [*start, f"{result['steps']:,}", score, f"{result['train_seconds']:,.0f} s"]

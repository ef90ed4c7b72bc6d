"""What baselines score: as a table for the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.base.console import counted, format_value
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Block, Cell, Code, Section, Table, Text

Found = Mapping[str, Any]
"""Contents of `baseline.json`."""
MOST_IN_TERMINAL = 3
HOW = (
    "None of these needs training. A trained model should clearly score more than the best of them. Intervals (95 %) "
    "are those of the evaluated rows. A pretrained model without a head for the task, and a new model, have random "
    "parameters: they score what chance does."
)


def main_names(found: Found) -> list[str]:
    """Returns the names of all scores, those of the main metric first."""
    names = dict.fromkeys(name for each in found["baselines"] for name in each["scores"])
    main = found["metric"].removeprefix("eval_")
    return sorted(names, key=lambda name: name.partition("_")[2] != main)


def table(found: Found, names: Sequence[str]) -> Table:
    """Returns the table of the baselines with some of their scores."""
    rows = [[each["name"], *(_cell(each, name) for name in names)] for each in found["baselines"]]
    return Table(["answer", *names], rows, sortable=True, stacked=True)


def _cell(each: Mapping[str, Any], name: str) -> Cell | None:
    value = each["scores"].get(name)
    if value is None:
        return None
    ends = each["intervals"].get(name)
    interval = f" ({format_value(ends[0])} to {format_value(ends[1])})".replace(" ", "\u00a0") if ends else ""
    return Cell(f"{format_value(value)}{interval}", value)


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    said: list[Block] = [table(found, main_names(found)), Text(HOW)]
    return [Section("Scores without training", said), Section("Command", [Code(found["command"], "bash")])]


def write(found: Found, folder: Path) -> None:
    """Writes `baseline.json`, and the page as HTML and Markdown."""
    title = f"Baselines of {found['config']}"
    lead = ", ".join(counted(count, f"{name} row") for name, count in found["rows"].items())
    write_json(folder / "baseline.json", found)
    write_text(folder / "baseline.md", render.render_markdown(title, f"{lead}.", sections(found)))
    write_text(folder / "baseline.html", render.render_html(title, f"{lead}.", sections(found)))

"""What a cross-validation found: as a table for the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.base.console import counted, format_value
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Highlights, Section, Table, Text

Found = Mapping[str, Any]
"""Contents of `cross_validation.json`."""
HOW = (
    "Each training row is a validation row in exactly one fold, and a training row in the others. The 95 % interval of "
    "the mean is that of a t test with the variance of Nadeau and Bengio (2003), because folds share most of their "
    "training rows. It describes another model of this kind, trained on as many rows."
)
TEST = " Scores that begin with test_ are of the same test rows in every fold, which no fold was trained on."


def summary(found: Found) -> Table:
    """Returns the table of all scores, the main one first."""
    main = found["metric"]
    names = sorted(found["metrics"], key=lambda name: name != main)
    rows = [[name, *_figures(found["metrics"][name])] for name in names]
    return Table(["score", "mean", "95 % interval", "sd"], rows, stacked=True)


def _figures(metric: Mapping[str, Any]) -> list[Any]:
    if metric["mean"] is None:
        return [None, "not finite in every fold", None]
    ends = f"{format_value(metric['low'])} to {format_value(metric['high'])}"
    return [metric["mean"], ends.replace(" ", "\u00a0"), metric["deviation"]]


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    main, folds = found["metrics"].get(found["metric"]), found["folds"]
    first: list[Any] = []
    if main is not None and main["mean"] is not None:
        value, ends, _ = _figures(main)
        first = [Highlights([(found["metric"], format_value(value)), ("95 % interval", ends)])]
    names = list(found["metrics"])
    rows = [
        [fold["fold"], *(found["metrics"][name]["values"][place] for name in names)] for place, fold in enumerate(folds)
    ]
    parts = list(dict.fromkeys(name for fold in folds for name in fold["rows"]))
    about = [
        [fold["fold"], *(fold["rows"].get(part) for part in parts), Cell(f"{fold['seconds']:.0f} s", fold["seconds"]),
         fold["folder"]]
        for fold in folds
    ]  # fmt: skip
    how = HOW + (TEST if any(name.startswith("test_") for name in names) else "")
    return [
        Section("Scores", [*first, summary(found), Text(how)]),
        Section("Folds", [
            Table(["fold", *names], rows, sortable=True),
            Table(["fold", *(f"{part} rows" for part in parts), "time", "run"], about, stacked=True),
        ]),
        Section("Command", [Code(found["command"], "bash")]),
    ]  # fmt: skip


def write(found: Found, folder: Path) -> None:
    """Writes `cross_validation.json`, and the page as HTML and Markdown."""
    title = f"Cross-validation of {found['config']}"
    lead = f"{counted(len(found['folds']), 'fold')}, seed {found['seed']}."
    write_json(folder / "cross_validation.json", found)
    write_text(folder / "cross_validation.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "cross_validation.html", render.render_html(title, lead, sections(found)))

"""What the doctor found: its page, and what the terminal shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from toolkit.base.console import PLAIN_WIDTH, format_value, shorten
from toolkit.document.blocks import Block, Cell, Code, Figure, Folded, Gallery, Page, Section, Table, Text
from toolkit.document.charts import histogram_chart
from toolkit.lab.doctor.findings import Finding, Suggestion
from toolkit.lab.doctor.sizes import Histogram
from toolkit.lab.tool import Report

TITLES = {
    "bad_rows": "Rows that cannot be used",
    "leaked": "Leaked rows",
    "near_leaked": "Nearly leaked rows",
    "shared_groups": "Groups in two splits",
    "duplicates": "Repeated rows",
    "near_duplicates": "Nearly repeated rows",
    "equal_texts": "Equal texts in one row",
    "contradictory": "Equal inputs with different labels",
    "label_errors": "Likely wrong labels",
    "large_errors": "Largest errors",
    "imbalance": "Uneven classes",
    "similar_labels": "Labels spelled alike",
    "rare_labels": "Rare labels",
    "unseen_labels": "Labels that are not evaluated",
    "cut": "Rows that are cut",
    "empty_columns": "Empty columns",
    "constant_columns": "Constant columns",
    "silent": "Silent recordings",
    "clipped": "Clipped recordings",
    "foreign": "Texts in another language",
    "uneven_lengths": "Answers told apart by their length",
    "outliers": "Unusual rows",
}
"""Titles of the kinds of findings, in the order in which they are shown."""
SHOWN, LISTED = 3, 100
"""Rows of a finding that the terminal and the page show; the JSON has all."""
NO_LABELS = (
    "Labels were not examined: that needs predictions of rows that a model was not trained on. "
    "`toolkit cross-validate` makes them for all training rows; then give its folder as --run."
)


@dataclass(frozen=True)
class Diagnosis(Report):
    """What may be wrong with the rows of a run."""

    FILE: ClassVar[str] = "doctor"

    rows: Mapping[str, int]  # number of rows by split
    labels: Mapping[str, Mapping[str, int]]  # number of rows with each label by split; empty without labels
    columns: Sequence[Mapping[str, Any]]  # the columns of the training file, as JSON objects
    histograms: Sequence[Histogram]  # distributions of lengths, durations and sizes of the training rows
    findings: Sequence[Finding]
    suggestions: Sequence[Suggestion]  # changes that answer the findings
    run: str | None  # the folder of the predictions, or None
    config: str
    command: str

    def _ordered(self) -> list[Finding]:
        return sorted(self.findings, key=lambda finding: list(TITLES).index(finding.kind))

    def on_terminal(self) -> list[Block]:
        """Returns the numbers of rows, the findings with their first rows, and the suggestions."""
        return [Code("\n".join(self._lines()))]

    def _lines(self) -> Iterator[str]:
        yield ", ".join(f"{count:,} {name}" for name, count in self.rows.items()) + " rows"
        yield ""
        if not self.findings:
            yield "Nothing was found."
        for finding in self._ordered():
            yield from _filled(f"{TITLES[finding.kind]}: {finding.message}", "- ")
            if shown := [_described(row) for row in finding.rows[:SHOWN]]:
                more = finding.count - len(shown)
                rest = f"; and {more:,} more" if more > 0 and len(finding.rows) > len(shown) else ""
                yield from _filled("; ".join(shown) + rest, "    ")
        if self.run is None:
            yield from _filled(NO_LABELS, "- ")
        if self.suggestions:
            yield from ("", "Suggestions:")
        for suggestion in self.suggestions:
            yield from (f"  {override}" for override in suggestion.overrides)
            yield from _filled(suggestion.why, "      ")

    def page(self) -> Page:
        """Returns the page: an overview of the findings, then everything by kind."""
        findings = self._ordered()
        found = [[TITLES[each.kind], each.count, each.message] for each in findings]
        overview: list[Block] = [Text("Nothing was found.")]
        if found:
            overview = [Table(["finding", "number", "what"], found, stacked=True)]
        if self.run is None:
            overview.append(Text(NO_LABELS))
        suggested = [[Cell("\n".join(each.overrides)), each.why] for each in self.suggestions]
        columns = [[c["name"], c["used_as"], c["type"], c["empty"], c["different"]] for c in self.columns]
        header = ["column", "used as", "type", "empty", "different"]
        return Page(f"Data of {self.config}", "What may be wrong with the rows of this run.", [
            Section("Findings", overview),
            Section("Suggestions", [Table(["override", "why"], suggested, stacked=True)] if suggested else []),
            Section("Rows", [Folded(_title(each), [_rows(each)]) for each in findings if each.rows]),
            Section("Labels", [_labels(self.labels)] if self.labels else []),
            Section("Lengths and sizes", list(_histograms(self.histograms))),
            Section("Columns", [Table(header, columns, sortable=True, stacked=True)] if columns else []),
        ])  # fmt: skip


def _filled(text: str, mark: str) -> list[str]:
    return textwrap.wrap(text, PLAIN_WIDTH, initial_indent=mark, subsequent_indent=" " * max(len(mark), 2))


def _described(row: Mapping[str, Any]) -> str:
    """Returns a row with what is said about it, for the terminal."""
    said = f"{row['split']} row {row['row']:,}"
    if "like_row" in row:
        said += f" like {row['like_split']} row {row['like_row']:,}"
    more = [f"{name} {_text(row[name])}" for name in ("label", "prediction", "probability", "value", "error", "reason")
            if name in row]  # fmt: skip
    return said + (f" ({', '.join(more)})" if more else "")


def _text(value: Any) -> str:
    return shorten(", ".join(map(str, value)) if isinstance(value, list) else format_value(value), 40)


def _title(finding: Finding) -> str:
    measured = finding.details.get("measured")
    return f"{TITLES[finding.kind]}: {finding.count:,}" + (f" ({measured})" if measured else "")


def _rows(finding: Finding) -> Table:
    names = list(dict.fromkeys(name for row in finding.rows[:LISTED] for name in row))
    rows = [[_cell(row.get(name)) for name in names] for row in finding.rows[:LISTED]]
    more = len(finding.rows) - LISTED
    caption = f"{finding.message} The first {LISTED}; doctor.json has all." if more > 0 else finding.message
    return Table([name.replace("_", " ") for name in names], rows, sortable=True, caption=caption)


def _cell(value: Any) -> Any:
    return _text(value) if isinstance(value, list | str) else value


def _labels(labels: Mapping[str, Mapping[str, int]]) -> Table:
    total = max(sum(labels["train"].values()), 1)
    names = dict.fromkeys(name for counts in labels.values() for name in counts)
    rows = [
        [name, *(counts.get(name, 0) for counts in labels.values()),
         Cell(f"{labels['train'].get(name, 0) / total:.1%}", labels["train"].get(name, 0) / total)]
        for name in names
    ]  # fmt: skip
    return Table(["label", *labels, "share of training rows"], rows, sortable=True)


def _histograms(histograms: Sequence[Histogram]) -> Iterator[Block]:
    if not histograms:
        return
    figures = []
    for each in histograms:
        label = f"{each.name}, {each.unit}"
        title = f"Histogram of {each.name}"
        drawing = histogram_chart(each.edges, each.counts, title=title, x_label=label, limit=each.limit)
        figures.append(Figure(label, drawing, file=f"{each.name}.svg"))
    yield Gallery(figures, "Histograms of the training rows", "histograms.svg")
    rows = [
        [each.name, each.unit, each.middle, each.covered, each.longest,
         f"{each.option}={each.limit:g}" if each.option else None,
         None if each.share_cut is None else Cell(f"{each.share_cut:.1%}", each.share_cut)]
        for each in histograms
    ]  # fmt: skip
    yield Table(["what", "unit", "median", "99 % up to", "longest", "limit", "cut"], rows, stacked=True)
    for each in histograms:
        if each.how:
            yield Text(f"{each.name}: {each.unit} are {each.how}.")

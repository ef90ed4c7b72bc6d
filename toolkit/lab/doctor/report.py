"""The doctor's page, and its words for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.base.console import format_value, shorten
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Block, Cell, Code, Folded, Gallery, Section, Table, Text
from toolkit.document.blocks import Figure as Picture
from toolkit.document.charts import histogram_chart
from toolkit.document.svg import sheet

Found = Mapping[str, Any]
"""Contents of `doctor.json`."""
TITLES = {
    "bad_rows": "Rows that cannot be used",
    "leaked": "Leaked rows",
    "near_leaked": "Nearly leaked rows",
    "shared_groups": "Groups in two splits",
    "duplicates": "Repeated rows",
    "near_duplicates": "Nearly repeated rows",
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
    "outliers": "Unusual rows",
}
"""Titles of the kinds of findings, in the order in which they are shown."""
WIDTH, SHOWN, LISTED = 80, 3, 100
"""Columns of the terminal, and rows of a finding that are shown there and on the page; the JSON has all."""
NO_LABELS = "Labels were not examined: that needs predictions of rows that a model was not trained on."
CROSS_VALIDATE = "`toolkit cross-validate` makes them for all training rows; then give its folder as --run."


def ordered(found: Found) -> list[Mapping[str, Any]]:
    """Returns the findings in the order in which they are shown."""
    return sorted(found["findings"], key=lambda finding: list(TITLES).index(finding["kind"]))


def lines(found: Found) -> Iterator[str]:
    """Yields lines of at most 80 characters for the terminal."""
    yield ", ".join(f"{count:,} {name}" for name, count in found["rows"].items()) + " rows"
    yield ""
    if not found["findings"]:
        yield "Nothing was found."
    for finding in ordered(found):
        yield from _filled(f"{TITLES[finding['kind']]}: {finding['message']}", "- ")
        shown = [_described(row) for row in finding["rows"][:SHOWN]]
        if shown:
            more = finding["count"] - len(shown)
            rest = f"; and {more:,} more" if more > 0 and len(finding["rows"]) > len(shown) else ""
            yield from _filled("; ".join(shown) + rest, "    ")
    if found["run"] is None:
        yield from _filled(f"{NO_LABELS} {CROSS_VALIDATE}", "- ")
    if found["suggestions"]:
        yield from ("", "Suggestions:")
    for suggestion in found["suggestions"]:
        yield from (f"  {override}" for override in suggestion["overrides"])
        yield from _filled(suggestion["why"], "      ")


def _filled(text: str, mark: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * max(len(mark), 2))


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


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    findings = ordered(found)
    overview: list[Block] = [
        Table(
            ["finding", "number", "what"],
            [[TITLES[f["kind"]], f["count"], f["message"]] for f in findings],
            stacked=True,
        )
        if findings
        else Text("Nothing was found.")
    ]
    if found["run"] is None:
        overview.append(Text(f"{NO_LABELS} {CROSS_VALIDATE}"))
    parts = [Section("Findings", overview)]
    if found["suggestions"]:
        said = [[Cell("\n".join(each["overrides"])), each["why"]] for each in found["suggestions"]]
        parts.append(Section("Suggestions", [Table(["override", "why"], said, stacked=True)]))
    if listed := [Folded(_title(f), [_rows(f)]) for f in findings if f["rows"]]:
        parts.append(Section("Rows", listed))
    if found["labels"]:
        parts.append(Section("Labels", [_labels(found["labels"])]))
    if found["histograms"]:
        parts.append(Section("Lengths and sizes", list(_histograms(found["histograms"]))))
    columns = [[c["name"], c["used_as"], c["type"], c["empty"], c["different"]] for c in found["columns"]]
    if columns:
        header = ["column", "used as", "type", "empty", "different"]
        parts.append(Section("Columns", [Table(header, columns, sortable=True, stacked=True)]))
    return [*parts, Section("Command", [Code(found["command"], "bash")])]


def _title(finding: Mapping[str, Any]) -> str:
    measured = finding["details"].get("measured")
    return f"{TITLES[finding['kind']]}: {finding['count']:,}" + (f" ({measured})" if measured else "")


def _rows(finding: Mapping[str, Any]) -> Table:
    names = list(dict.fromkeys(name for row in finding["rows"][:LISTED] for name in row))
    rows = [[_cell(row.get(name)) for name in names] for row in finding["rows"][:LISTED]]
    more = len(finding["rows"]) - LISTED
    caption = f"{finding['message']} The first {LISTED}; doctor.json has all." if more > 0 else finding["message"]
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


def _histograms(histograms: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    figures = [
        Picture(f"{each['name']}, {each['unit']}", drawing, file=f"{each['name']}.svg")
        for each, drawing in zip(histograms, drawings(histograms), strict=True)
    ]
    yield Gallery(figures, "Histograms of the training rows", "histograms.svg")
    rows = [
        [each["name"], each["unit"], each["middle"], each["covered"], each["longest"],
         f"{each['option']}={each['limit']:g}" if each["option"] else None,
         None if each["share_cut"] is None else Cell(f"{each['share_cut']:.1%}", each["share_cut"])]
        for each in histograms
    ]  # fmt: skip
    yield Table(["what", "unit", "median", "99 % up to", "longest", "limit", "cut"], rows, stacked=True)
    for each in histograms:
        if each["how"]:
            yield Text(f"{each['name']}: {each['unit']} are {each['how']}.")


def drawings(histograms: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the histograms as drawings."""
    return [
        histogram_chart(
            each["edges"], each["counts"], title=f"Histogram of {each['name']}",
            x_label=f"{each['name']}, {each['unit']}", limit=each["limit"],
        )
        for each in histograms
    ]  # fmt: skip


def write(found: Found, folder: Path) -> None:
    """Writes `doctor.json`, the page as HTML and Markdown, and the histograms of the latter."""
    title, lead = f"Data of {found['config']}", "What may be wrong with the rows of this run."
    write_json(folder / "doctor.json", found)
    write_text(folder / "doctor.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "doctor.html", render.render_html(title, lead, sections(found)))
    if found["histograms"]:
        write_text(folder / "histograms.svg", sheet(drawings(found["histograms"])))

"""What a learning-rate range test found: in words, as overrides, as a chart, and as a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.base.console import format_value
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Code, Figure, Section, Table, Text
from toolkit.document.charts import Line, line_chart
from toolkit.document.render import text_chart
from toolkit.document.svg import Drawing, sheet

Found = Mapping[str, Any]
"""Contents of `lr_find.json`."""
POINTS = {
    "start_of_decline": "the loss begins to fall",
    "steepest": "it falls fastest",
    "lowest": "it is lowest",
    "divergence": "it begins to rise: training diverges from here",
}
"""The rates of a reading, in the order in which they are shown."""
PLOT = "Loss after an update at each learning rate"


def words(found: Found) -> list[str]:
    """Returns what was found, as lines of at most 80 characters."""
    lines = []
    for letter, (name, meaning) in zip("ABCD", POINTS.items(), strict=True):
        rate = found["others"][name]
        lines.append(f"  {letter}  {'-' if rate is None else format_value(rate):>9}  {meaning}")
    if found["others"]["divergence"] is None:
        lines[-1] = f"  D          -  the loss does not rise up to {format_value(found['to'])}"
    return lines


def choices(found: Found) -> list[str]:
    """Returns the overrides for each kind of schedule, as lines."""
    lines = []
    if found["others"]["steepest"] is None:
        assumed = "" if found["suggestion"] is None else "; a tenth of that of divergence is\nassumed"
        lines.append(f"The loss does not clearly fall at any of these rates{assumed}. Try more --steps.")
    for name, overrides in found["overrides"].items():
        chosen = " (the configured one)" if name == found["schedule"] else ""
        lines += [f"{name}{chosen}:", *(f"  {override}" for override in overrides)]
    return lines


def chart(found: Found) -> list[str]:
    """Returns the curve as lines of text."""
    rates, losses = _shown(found)
    marks = {
        letter: found["others"][name]
        for letter, name in zip("ABCD", POINTS, strict=True)
        if found["others"][name] is not None
    }
    return text_chart(rates, losses, marks, "learning rate", "loss (smoothed)")


def drawing(found: Found) -> Drawing:
    """Returns the curve as a drawing."""
    rates, smoothed = _shown(found)
    highest = _highest(smoothed)
    raw = [loss if loss is not None and loss <= highest else None for _, loss in found["curve"]]
    lines: dict[str, Line] = {"loss, smoothed": (rates, smoothed)}
    low = min(value for value in smoothed if math.isfinite(value))
    for name in POINTS:
        if (rate := found["others"][name]) is not None:
            lines[name.replace("_", " ")] = ([rate, rate], [low, highest])
    return line_chart(
        lines, title=PLOT, x_label="learning rate", y_label="loss", log_x=True,
        thin={"loss, smoothed": [(rates, raw)]},
    )  # fmt: skip


def _highest(values: Sequence[float]) -> float:
    """Returns the largest finite value."""
    return max(value for value in values if math.isfinite(value))


def _shown(found: Found) -> tuple[list[float], list[float]]:
    """Returns the rates and the smoothed losses without those far above the first one, which would hide the rest."""
    rates, smoothed = [rate for rate, _ in found["curve"]], found["smoothed"]
    limit = smoothed[0] + max(smoothed[0] - min(smoothed), 0.1 * abs(smoothed[0]))
    return rates, [loss if loss <= limit else math.nan for loss in smoothed]


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    rows = [[name.replace("_", " "), found["others"][name], meaning] for name, meaning in POINTS.items()]
    figure = Figure(PLOT, drawing(found), file="lr_find.svg")
    return [
        Section("Curve", [figure, Table(["point", "learning rate", "where"], rows), Text(_how(found))]),
        Section("Overrides", [Code("\n".join(choices(found)))]),
        Section("Command", [Code(found["command"], "bash")]),
    ]


def _how(found: Found) -> str:
    ended = {
        "finished": "It ran through all of its steps.",
        "diverged": "It ended early, because the loss had diverged.",
        "not finite": "It ended early, because a gradient or a parameter was not finite.",
    }
    return (
        f"Trained for {len(found['curve']) + 1} of {found['steps']} steps of {found['rows_per_step']} rows while the "
        f"rate rose from {format_value(found['from'])} to {format_value(found['to'])}. {ended[found['ended']]} Each "
        "point is the rate of an update and the mean loss of the step after it; losses are smoothed with their "
        "neighbours. No model was written."
    )


def write(found: Found, folder: Path) -> None:
    """Writes `lr_find.json`, the page as HTML and Markdown, and the chart as SVG and PNG."""
    from toolkit.document.plots import rate_test

    title, lead = f"Learning rates for {found['config']}", "A learning-rate range test (Smith 2017, arXiv 1506.01186)."
    write_json(folder / "lr_find.json", found)
    write_text(folder / "lr_find.svg", sheet([drawing(found)]))
    write_text(folder / "lr_find.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "lr_find.html", render.render_html(title, lead, sections(found)))
    rates, smoothed = _shown(found)
    marks = {name.replace("_", " "): found["others"][name] for name in POINTS if found["others"][name] is not None}
    rate_test(rates, smoothed, marks, folder / "lr_find.png")

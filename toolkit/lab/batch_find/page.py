"""What a search for a micro-batch found: in words, as a table, as overrides, and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.base.console import format_bytes, say
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Figure, Section, Table, Text
from toolkit.document.charts import line_chart
from toolkit.document.render import print_table
from toolkit.document.svg import Drawing, sheet
from toolkit.lab.batch_find.search import GAIN, Tried, best_of

Found = Mapping[str, Any]
"""Contents of `batch_find.json`."""
SPEED = "Speed of each micro-batch"
MOST_SPREAD = 0.25
"""From this difference between the rounds on, other programs have disturbed the measurement."""


def found_of(tried: Sequence[Tried], configured: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was found as JSON values.

    Args:
        tried: the sizes, increasing; at least one fits.
        configured: the configured micro-batch, in the unit of the sizes.
        facts: further facts.
    """
    fitting = [each for each in tried if each.fits]
    best, largest = best_of(tried), fitting[-1]
    own = next((each for each in fitting if each.size.micro_batch == configured), None)
    return {
        "best": best.size.micro_batch, "largest": largest.size.micro_batch, "configured": configured,
        "spread": max(each.spread for each in fitting),
        "faster": float(np.median(best.rates / own.rates)) if own else None,
        "overrides": best.size.overrides, "overrides_of_largest": largest.size.overrides,
        "sizes": [_facts(each, before) for each, before in zip(tried, [None, *tried], strict=False)],
        **facts,
    }  # fmt: skip


def _facts(each: Tried, before: Tried | None) -> dict[str, Any]:
    size = each.size
    return {
        "micro_batch": size.micro_batch, "rows_of_a_step": size.window, "estimate": each.estimate, "peak": each.peak,
        "fits": each.fits, "refused": each.refused, "overrides": size.overrides,
        "rounds": each.seconds,
        "seconds": float(np.median(np.min(each.seconds, axis=0))) if each.fits else None,
        "rows_per_second": float(np.median(each.rates)) if each.fits else None,
        "gain_per_doubling": each.gain(before) - 1 if each.fits and before is not None and before.fits else None,
    }  # fmt: skip


def words(found: Found) -> list[str]:
    """Returns what was found, as lines of at most 80 characters."""
    unit, best, largest = found["unit"], found["best"], found["largest"]
    lines = [f"Best:    {best} {unit}; no larger one is {GAIN:.0%} faster for each doubling."]
    if found["faster"] is not None and best != found["configured"]:
        lines.append(f"         {found['faster']:.2f} times as fast as the configured {found['configured']} {unit}.")
    lines.append(f"Largest: {largest} {unit}; {_limit(found)}.")
    if found["spread"] > MOST_SPREAD:
        lines.append(f"The two rounds differ by up to {found['spread']:.0%}: repeat this on a quiet machine.")
    return lines


def _limit(found: Found) -> str:
    """Returns what keeps the largest size from being larger."""
    refused = [each for each in found["sizes"] if each["refused"] and each["micro_batch"] > found["largest"]]
    if refused:
        return f"with {refused[0]['micro_batch']}, {refused[0]['refused'].partition(':')[0]}"
    return "the whole step at once" if found["scale_lr"] is None else "no larger one was tried"


def choices(found: Found) -> list[str]:
    """Returns the overrides of the best size, as lines."""
    return ["Overrides of the best:", *(f"  {override}" for override in found["overrides"])]


def header(found: Found) -> list[str]:
    """Returns the names of the table's columns."""
    return [found["unit"], "rows/step", "estimate", "peak", "s/step", "rows/s", "gain", ""]


def rows(found: Found) -> list[list[Any]]:
    """Returns the rows of the table."""
    return [
        [
            each["micro_batch"], each["rows_of_a_step"], _bytes(each["estimate"]), _bytes(each["peak"]),
            each["seconds"], each["rows_per_second"], _gain(each["gain_per_doubling"]),
            each["refused"] or {found["best"]: "best", found["largest"]: "largest"}.get(each["micro_batch"], ""),
        ]
        for each in found["sizes"]
    ]  # fmt: skip


def show(found: Found) -> None:
    """Prints the table, and what was found."""
    print_table(_table(found))
    say("\n".join(["", *words(found), "", *choices(found)]))


def _table(found: Found) -> Table:
    return Table(header(found), rows(found), caption="Sizes that were tried")


def _bytes(size: int | None) -> Cell | None:
    return None if size is None else Cell(format_bytes(size), size)


def _gain(gain: float | None) -> Cell | None:
    return None if gain is None else Cell(f"{gain:+.0%}", gain)


def drawing(found: Found) -> Drawing:
    """Returns the speed of each size as a drawing."""
    fitting = [each for each in found["sizes"] if each["fits"]]
    points = [each["micro_batch"] for each in fitting], [each["rows_per_second"] for each in fitting]
    best = [found["best"]] * 2, [0.0, max(points[1])]
    return line_chart(
        {"measured": points, "best": best}, title=SPEED, x_label=f"{found['unit']} of a micro-batch",
        y_label="rows per second", zero=True, log_x=True,
    )  # fmt: skip


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    figure = Figure(SPEED, drawing(found), file="batch_find.svg")
    return [
        Section("Result", [*(Text(line.strip()) for line in words(found)), Code("\n".join(found["overrides"]))]),
        Section("Sizes", [figure, _table(found), Text(_how(found))]),
        Section("Command", [Code(found["command"], "bash")]),
    ]


def _how(found: Found) -> str:
    return (
        "Each size trained two steps on the longest rows, which gave its peak of memory, and "
        f"{found['steps']} steps of the run's own rows in each of two rounds, the second in the opposite order; a step "
        "counts with the faster one. Rows per second are those of all processes, the median over steps. Gain: per "
        "doubling, over the size before. "
        f"Estimate: that of toolkit plan, corrected by the peaks of smaller sizes. Each of {found['processes']} "
        f"processes may use {format_bytes(found['memory'])}."
    )


def write(found: Found, folder: Path) -> None:
    """Writes `batch_find.json`, the page as HTML and Markdown, and the chart."""
    title, lead = f"Micro-batches for {found['config']}", "\n".join(line.strip() for line in words(found))
    write_json(folder / "batch_find.json", found)
    write_text(folder / "batch_find.svg", sheet([drawing(found)]))
    write_text(folder / "batch_find.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "batch_find.html", render.render_html(title, lead, sections(found)))

"""What collective operations cost: as tables, in words, and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.base.console import format_bytes
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Figure, Section, Table, Text
from toolkit.document.charts import line_chart
from toolkit.document.svg import Drawing, sheet
from toolkit.lab.collectives.measure import factor

Found = Mapping[str, Any]
"""Contents of `collectives.json`."""
TIMES, BANDWIDTHS = "Time of each operation", "Bandwidth of each operation"
USES = {
    "all_reduce": "gradients of data parallelism, outputs of tensor parallelism",
    "all_gather": "weights of FSDP and ZeRO",
    "reduce_scatter": "gradients of FSDP and ZeRO",
    "broadcast": "weights at the start, batches of the first process",
}
"""What a run needs each operation for."""


def found_of(measured: Mapping[str, Any], sizes: Sequence[int], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was found as JSON values.

    Time is a latency plus bytes by bandwidth (Hockney 1994): the shortest time, that of a small tensor, is the latency,
    and what the largest one takes beyond it gives the bandwidth.
    """
    operations = {}
    for name, seconds in measured["seconds"].items():
        share = factor(name, facts["processes"])
        latency = min(seconds)
        bandwidth = share * sizes[-1] / max(seconds[-1] - latency, 1e-12)
        operations[name] = {
            "seconds": seconds,
            "bytes_per_second": [share * size / time for size, time in zip(sizes, seconds, strict=True)],
            "latency": latency,
            "bandwidth": bandwidth,
            "half_size": latency * bandwidth / share,
        }
    return {"sizes": list(sizes), "operations": operations, "backend": measured["backend"],
            "device": measured["device"], **facts}  # fmt: skip


def duration(seconds: float) -> str:
    """Returns a short time with three digits and a unit."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def tables(found: Found) -> list[Table]:
    """Returns the tables of times and of bandwidths."""
    operations = found["operations"]
    header = ["bytes", *map(_shown, operations)]

    def rows(key: str, show: Any) -> list[list[Any]]:
        columns = [[Cell(show(value), value) for value in each[key]] for each in operations.values()]
        return [[Cell(format_bytes(size), size), *cells] for size, *cells in zip(found["sizes"], *columns, strict=True)]

    return [
        Table(header, rows("seconds", duration), caption=TIMES),
        Table(header, rows("bytes_per_second", lambda rate: f"{format_bytes(rate)}/s"), caption=BANDWIDTHS),
    ]


def summary(found: Found) -> Table:
    """Returns the table of what each operation costs."""
    rows = [
        [
            _shown(name), Cell(duration(each["latency"]), each["latency"]),
            Cell(f"{format_bytes(each['bandwidth'])}/s", each["bandwidth"]),
            Cell(format_bytes(each["half_size"]), each["half_size"]), USES[name],
        ]
        for name, each in found["operations"].items()
    ]  # fmt: skip
    return Table(["operation", "latency", "bandwidth", "mostly latency below", "for"], rows, caption="Result")


def _shown(name: str) -> str:
    return name.replace("_", "-")


def drawing(found: Found) -> Drawing:
    """Returns the times as a drawing."""
    lines = {_shown(name): (found["sizes"], each["seconds"]) for name, each in found["operations"].items()}
    return line_chart(lines, title=TIMES, x_label="bytes", y_label="seconds", log=True, log_x=True)


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    figure = Figure(TIMES, drawing(found), file="collectives.svg")
    return [
        Section("Result", [summary(found), Text(_how(found))]),
        Section("Sizes", [figure, *tables(found)]),
        Section("Command", [Code(found["command"], "bash")]),
    ]


def _how(found: Found) -> str:
    return (
        f"{found['processes']} processes on {found['device']}, through {found['backend']}. Times are medians over "
        "rounds, and a round lasts until its last process has finished. Bytes are those of the whole tensor. Bandwidth "
        "is what each process must send at least, per second (the bus bandwidth of nccl-tests), so it can be compared "
        "with that of the network."
    )


def write(found: Found, folder: Path) -> None:
    """Writes `collectives.json`, the page as HTML and Markdown, and the chart."""
    title = f"Collective operations of {found['processes']} processes"
    lead = "What exchanging tensors costs here, from 1 KiB to 64 MiB."
    write_json(folder / "collectives.json", found)
    write_text(folder / "collectives.svg", sheet([drawing(found)]))
    write_text(folder / "collectives.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "collectives.html", render.render_html(title, lead, sections(found)))

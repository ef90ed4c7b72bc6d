"""What a scaling measurement found: in words, as a table, as a picture, and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from toolkit.base.console import format_bytes, format_value, say
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Figure, Section, Table, Text
from toolkit.document.charts import Line, line_chart
from toolkit.document.render import print_table
from toolkit.document.svg import Drawing, sheet
from toolkit.lab.compare import costs
from toolkit.lab.compare.notes import is_busy
from toolkit.lab.compare.table import shown
from toolkit.lab.scale.laws import amdahl, gustafson
from toolkit.lab.scale.results import mean_load

Found = Mapping[str, Any]
"""Contents of `scale.json`."""
PICTURE = "Speed-up over the number of processes"
CURVE_POINTS, COLUMNS = 40, 80
MODES = {
    "strong": "every number of processes trains the same rows in a step",
    "weak": "each process has the same rows in a step, so a step has more with more processes",
}
LAWS = {"strong": "Amdahl", "weak": "Gustafson"}


def table(found: Found) -> Table:
    """Returns the table of all numbers of processes."""
    header = ["processes", "step", "real items/s", "speed-up", "efficiency", "exchange", "plan"]
    rows = [
        [
            point["processes"],
            Cell(shown("step_seconds", point["step_seconds"]["value"]), point["step_seconds"]["value"]),
            Cell(shown("real_per_second", point["real_per_second"]["value"]), point["real_per_second"]["value"]),
            Cell(f"{point['speedup']['value']:.2f}", point["speedup"]["value"]),
            _percent(point["efficiency"]),
            None if (share := point["exchange_share"]) is None else Cell(f"{share:.1%}", share),
            None if (plan := point["plan_speedup"]) is None else Cell(f"{plan:.2f}", plan),
        ]
        for point in found["points"]
    ]
    return Table(header, rows, caption=f"Scaling ({found['mode']})")


def details(found: Found) -> Table:
    """Returns the table of what lies behind: rows, intervals and exchange."""
    header = ["processes", "rows per step", "step, 95 %", "real items/s, 95 %", "speed-up, 95 %", "sent per step",
              "bandwidth"]  # fmt: skip
    rows = [
        [
            point["processes"], point["rows_per_step"],
            *(_interval(name, point[name]) for name in ("step_seconds", "real_per_second", "speedup")),
            *(None if point[name] is None else Cell(format_bytes(round(point[name])) + per, point[name])
              for name, per in (("exchange_bytes", ""), ("bandwidth", "/s"))),
        ]
        for point in found["points"]
    ]  # fmt: skip
    return Table(header, rows)


def _percent(figure: Mapping[str, Any]) -> Cell:
    span = "" if figure["low"] is None else f" ({figure['low']:.0%} to {figure['high']:.0%})"
    return Cell(f"{figure['value']:.0%}{span}", figure["value"])


def _interval(name: str, figure: Mapping[str, Any]) -> Cell | None:
    if figure["low"] is None:
        return None
    low, high = (f"{end:.2f}" if name == "speedup" else shown(name, end) for end in (figure["low"], figure["high"]))
    return Cell(f"{low} to {high}", figure["value"])


def words(found: Found) -> list[str]:
    """Returns what was found, as sentences."""
    said = [f"Mode {found['mode']}: {MODES[found['mode']]}."]
    serial = found["serial"]
    if serial is not None:
        span = "" if serial["low"] is None else f" (95 %: {serial['low']:.1%} to {serial['high']:.1%})"
        said.append(f"The serial part that fits {LAWS[found['mode']]}'s law best is {serial['value']:.1%}{span}.")
    most = found["points"][-1]["processes"]
    if found["cores"] is not None:
        words = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
        said.append(f"Each process computes with {words}; there are {found['cores']} cores.")
        if found["cores"] < most:
            said.append(f"{most} processes share {found['cores']} cores, so they cannot be {most} times as fast.")
    if is_busy(load := mean_load(found), max(most, found["hardware"]["cpus"] or 1)):
        said.append(f"The machine was busy (load average {load:.1f}): the times are unreliable.")
    if found["rounds"] == 1:
        said.append("A single round has no interval; use --rounds 3 or more.")
    return said


def drawing(found: Found) -> Drawing:
    """Returns the speed-ups as a drawing: measured, by both laws, by the plan, and ideal."""
    numbers = [point["processes"] for point in found["points"]]
    fine = [numbers[0] + (numbers[-1] - numbers[0]) * place / CURVE_POINTS for place in range(CURVE_POINTS + 1)]
    lines: dict[str, Line] = {"measured": (numbers, [point["speedup"]["value"] for point in found["points"]])}
    if found["serial"] is not None:
        part = found["serial"]["value"]
        for name, law in (("Amdahl", amdahl), ("Gustafson", gustafson)):
            lines[f"{name}, {part:.0%} serial"] = (fine, [law(part, n) for n in fine])
    if any(point["plan_speedup"] is not None for point in found["points"]):
        lines["plan"] = (numbers, [point["plan_speedup"] for point in found["points"]])
    lines["ideal"] = (numbers, [float(number) for number in numbers])
    ends = [
        ([number, number], [point["speedup"]["low"], point["speedup"]["high"]])
        for number, point in zip(numbers, found["points"], strict=True)
        if point["speedup"]["low"] is not None
    ]
    return line_chart(
        lines, title=PICTURE, x_label="processes", y_label="times as many items per second as one process",
        zero=True, point="processes", thin={"measured": ends},
    )  # fmt: skip


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    figure = Figure(PICTURE, drawing(found), file="scale.svg")
    spent: Sequence[Any] = [
        [title, costs.cost_text(name, found["costs"][name])]
        for name, title in costs.SUMMED.items()
        if name in found["costs"]
    ]
    parts = [
        Section("Result", [*map(Text, words(found)[1:]), figure, table(found), Text(HOW)]),
        Section("Intervals and exchange", [details(found)]),
        Section("Cost of all runs", [Table(["what", "all runs"], spent)] if spent else []),
        Section("Command", [Code(found["command"], "bash")]),
        Section("Environment", [Table(["what", "value"], _facts(found))]),
    ]
    return [part for part in parts if part.blocks]


HOW = (
    "All numbers of processes ran in turn. Efficiency is the speed-up per process; intervals hold 95 % of bootstrap "
    "draws of rounds and their steps. Exchange is the share of a step that sending takes at the bandwidth of an "
    "all-reduce between as many processes, an upper bound where sending overlaps with computing. Plan is what toolkit "
    "plan estimates from steps of one process and this bandwidth. Both laws are drawn with the fitted part."
)


def _facts(found: Found) -> list[list[str]]:
    facts = {**(found["hardware"] or {}), **(found["versions"] or {})}
    return [[name, ", ".join(value) if isinstance(value, list) else str(value)] for name, value in facts.items()]


def show(found: Found) -> None:
    """Prints the table, and what was found."""
    print_table(table(found))
    say("\n".join(["", *(fill(line, COLUMNS) for line in words(found))]))
    if "energy_wh" in found["costs"]:
        say(f"All runs took {format_value(found['costs']['energy_wh'])} Wh.")


def write(found: Found, folder: Path) -> None:
    """Writes `scale.json`, the page as HTML and Markdown, and the picture."""
    title, lead = f"Scaling of {found['config']}", words(found)[0]
    write_json(folder / "scale.json", found)
    write_text(folder / "scale.svg", sheet([drawing(found)]))
    write_text(folder / "scale.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "scale.html", render.render_html(title, lead, sections(found)))

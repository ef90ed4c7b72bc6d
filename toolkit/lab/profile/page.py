"""A profile in words, as tables for the terminal, and as a page."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from toolkit.base.console import counted, format_bytes, say, shorten
from toolkit.base.files import write_json, write_text
from toolkit.document import render
from toolkit.document.blocks import Block, Cell, Code, Section, Table, Text
from toolkit.document.render import print_table
from toolkit.lab.profile.summary import Found
from toolkit.report.sections import MEANINGS, share_cell

TRACE = "trace.json.gz"
WIDTH = 80
NOTHING = "Nothing here takes much time that a setting would save."
SHOWN = 8
"""Operations that the terminal shows."""
NAME = 44
"""Characters of an operation's name there."""


def phases(found: Found) -> Table:
    """Returns the table of the phases."""
    memory = found["memory"]["phases"]
    rows = [
        [name, duration(each["seconds"]), share_cell(each["share"]), *_memory(memory.get(name)), MEANINGS[name]]
        for name, each in found["phases"].items()
        if each["seconds"]
    ]
    caption = f"Phases of a step of {format_seconds(found['step_seconds'])}"
    return Table(["phase", "time", "share", "peak", "kept", "what it is"], rows, caption=caption)


def operations(found: Found) -> list[Table]:
    """Returns the tables of the operations with the most time, on the CPU and on the GPU."""
    tables = []
    for name, caption in (("kernels", "Kernels of the GPU"), ("operations", "Operations of the CPU")):
        rows = [
            [each["name"], Cell(f"{each['calls']:,.0f}", each["calls"]), duration(each["seconds"]),
             share_cell(each["share"])]
            for each in found[name]
        ]  # fmt: skip
        if rows:
            tables.append(Table(["name", "calls", "own time", "share"], rows, caption=f"{caption}, of a step"))
    return tables


def figures(found: Found) -> Table:
    """Returns the table of speed and use."""
    flops, padding, launches, exchange = (found[name] for name in ("flops", "padding", "launches", "exchange"))
    rows: list[list[Any]] = [
        ["rows per second", f"{found['rows_per_second']:,.4g}"],
        ["FLOP of a step", _units(flops["step"], "FLOP")],
        ["FLOP/s", _units(flops["second"], "FLOP/s")],
        ["FLOP/s of a large matrix product", _units(flops["matmul_second"], "FLOP/s")],
        ["utilisation (MFU): the part of it", f"{flops['utilisation']:.1%}"],
        ["operations of a step", f"{launches['operations']:,.0f}"],
    ]
    if launches["busy"] is not None:
        rows.append(["part of it in which the GPU computes", f"{launches['busy']:.1%}"])
    if padding["share"] is not None:
        left_out = "" if padding["computed"] else " (not computed)"
        rows.append(["padding", f"{padding['share']:.1%} of the positions{left_out}"])
    rows.append(["loading the rows of a step, alone", format_seconds(found["loading"]["seconds"])])
    if found["processes"] > 1:
        rows += [
            ["exchange and nothing else", f"{exchange['share']:.1%} of a step"],
            ["of that, waiting for the slowest", f"{exchange['waiting']:.1%} of a step"],
            ["any exchange under way, main process", f"{exchange['in_flight']:.1%} of a step"],
        ]
    return Table(["figure", "value"], rows)


def advice(found: Found, width: int | None = None) -> list[str]:
    """Returns the advice as lines, wrapped to a width."""
    lines = []
    for number, each in enumerate(found["advice"], start=1):
        text = f"{number}. {each['text']}"
        lines += [text] if width is None else textwrap.wrap(text, width, subsequent_indent="   ")
        lines += [f"   {override}" for override in each["override"]]
    return lines or [NOTHING]


def show(found: Found) -> None:
    """Prints the tables and the advice."""
    table = phases(found)
    print_table(Table(table.header[:-1], [row[:-1] for row in table.rows], caption=table.caption))
    say("")
    for each in operations(found)[:1]:
        rows = [[shorten(name, NAME), *rest] for name, *rest in each.rows[:SHOWN]]
        print_table(Table(each.header, rows, caption=each.caption))
        say("")
    print_table(figures(found))
    say("\n".join(["", *advice(found, WIDTH)]))


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    return [
        Section("Advice", _advice(found)),
        Section("Where the time goes", [phases(found), Text(_how(found)), Text(_memory_note(found))]),
        Section("Figures", [figures(found)]),
        Section("Operations", [*operations(found), Text(f"The trace is in {TRACE}: open it in ui.perfetto.dev.")]),
        Section("Command", [Code(found["command"], "bash")]),
    ]


def _advice(found: Found) -> list[Block]:
    blocks: list[Block] = []
    for each in found["advice"]:
        blocks += [Text(each["text"]), Code("\n".join(each["override"]), "bash")]
    return blocks or [Text(line) for line in advice(found)]


def _how(found: Found) -> str:
    gpu = " Each phase waits for the GPU." if found["machine"]["device"] != "cpu" else ""
    return (
        f"Times are means over {found['steps']} steps after {found['skipped']} others, and over "
        f"{found['processes']} process{'' if found['processes'] == 1 else 'es'}.{gpu} As many further steps were "
        "traced, for operations and memory, and one was counted, for FLOP: matrix products, convolutions and "
        "attention, of the forward and the backward pass. Nothing was evaluated or saved."
    )


def _memory_note(found: Found) -> str:
    return (
        f"Peak: the most that tensors held in a phase above the {format_bytes(found['memory']['before'])} of weights, "
        "buffers and optimizer. Kept: by how much they grew in it, over a step."
    )


def _memory(each: dict[str, float] | None) -> list[Cell | None]:
    if each is None:
        return [None, None]
    return [Cell(_signed(each[name]), each[name]) for name in ("peak", "kept")]


def _signed(size: float) -> str:
    return f"-{format_bytes(-size)}" if size < 0 else format_bytes(size)


def duration(seconds: float) -> Cell:
    """Returns a time as a cell."""
    return Cell(format_seconds(seconds), seconds)


def format_seconds(seconds: float) -> str:
    """Returns a short time with its unit."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def _units(value: float, unit: str) -> str:
    for factor, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {name}{unit}"
    return f"{value:.3g} {unit}"


def write(found: Found, folder: Path) -> None:
    """Writes `profile.json`, and the page as HTML and Markdown."""
    count = len(found["advice"])
    title, lead = f"Profile of {found['config']}", f"{counted(count, 'thing')} to change." if count else NOTHING
    write_json(folder / "profile.json", found)
    write_text(folder / "profile.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "profile.html", render.render_html(title, lead, sections(found)))

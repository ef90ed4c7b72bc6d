"""Shows a plan as tables of at most 80 columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.base.console import format_bytes, rich_console
from toolkit.base.errors import InputError
from toolkit.footprint.simulate import Footprint
from toolkit.lab.plan.estimates import Scaling, Splits, Strategy
from toolkit.lab.plan.fit import Fit

if TYPE_CHECKING:
    from rich.table import Table


PARTS = {
    "parameters": "weights",
    "buffers": "buffers",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "copies": "averages and anchors",
    "weight_copies": "weights in mixed precision",
    "activations": "activations kept for the backward pass",
    "logits": "logits and loss",
    "batch": "batch",
    "working": "working memory at the peak",
}
"""Parts of a footprint, in the order in which they are shown."""
OF_WEIGHTS = ("parameters", "gradients", "optimizer_state", "copies", "weight_copies")
"""Parts that grow with the number of weights."""

MAX_SPLITS = 10
"""Maximum number of splits to show."""


def _table(title: str, *columns: tuple[str, str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name, kind in columns:
        right = kind == "number"
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return table


def show(*tables: Table) -> None:
    """Prints tables one below the other, 80 columns wide if the output is a file or a pipe."""
    console = rich_console()
    for table in tables:
        console.print(table)
        console.print()


def parts_table(footprint: Footprint, optim: str) -> Table:
    """Returns the table of memory by part, with bytes per weight for parts that grow with the weights."""
    table = _table("Memory of one device", ("part", "text"), ("memory", "number"), ("bytes per weight", "number"))
    for name, label in PARTS.items():
        size = getattr(footprint, name)
        if not size:
            continue
        shown = f"optimizer state ({optim})" if name == "optimizer_state" else label
        table.add_row(shown, format_bytes(size), f"{size / footprint.total:.2f}" if name in OF_WEIGHTS else "")
    per_weight = f"{footprint.peak / footprint.total:.2f}"
    table.add_row("[bold]peak of a step", f"[bold]{format_bytes(footprint.peak)}", per_weight)
    return table


def strategies_tables(found: Sequence[Strategy], refused: Mapping[str, str], processes: int) -> list[Table]:
    """Returns tables of the costs and uses of strategies, and the reasons against others by name."""
    devices = f"{processes} device{'s' if processes > 1 else ''}"
    costs = _table(
        f"Strategies for {devices}", ("strategy", "text"), ("memory of each", "number"),
        ("sent by each in a step", "number"), ("speed, at most", "number"),
    )  # fmt: skip
    uses = _table("When to use which", ("strategy", "text"), ("complexity", "text"), ("when", "text"))
    for each in found:
        sent = format_bytes(each.sent) if each.sent else "-"
        costs.add_row(each.name, format_bytes(each.memory), sent, f"{each.speed:.2g}x")
        uses.add_row(each.name, each.complexity, each.when)
    for name, reason in refused.items():
        uses.add_row(name, "not possible", reason)
    return [costs, uses] if len(found) > 1 else [costs]


def splits_tables(found: Splits, processes: int, capacity: int) -> list[Table]:
    """Returns the table of the splits that fit; empty if none does."""
    table = _table(
        f"Splits that fit {processes} x {format_bytes(capacity)}, those that send the least first",
        ("parallel", "text"), ("memory of each", "number"), ("sent by each in a step", "number"),
        ("speed, at most", "number"),
    )  # fmt: skip
    for each in found.fitting[:MAX_SPLITS]:
        sent = format_bytes(each.sent) if each.sent else "-"
        table.add_row(each.name, format_bytes(each.memory), sent, f"{each.speed:.2g}x")
    return [table] if found.fitting else []


def splits_lines(found: Splits, processes: int, capacity: int) -> list[str]:
    """Returns the lines that name the settings of the first split, or the smallest memory if none fits."""
    if found.fitting:
        more = len(found.fitting) - MAX_SPLITS
        return [
            *([f"({more} more fit; --output FILE lists all.)"] if more > 0 else []),
            "Settings of the first:",
            *_indented(found.fitting[0].overrides),
        ]
    smallest = found.smallest
    return [
        f"No split over {processes} devices of {format_bytes(capacity)} fits with these micro-batches.",
        f"The smallest needs {format_bytes(smallest.memory)}, with",
        *_indented(smallest.overrides),
    ]


def _indented(overrides: Sequence[str]) -> list[str]:
    return [f"    {override}" for override in overrides] or ["    the settings as configured"]


def scaling_table(found: Sequence[Scaling]) -> Table:
    """Returns the table of speed-ups by number of processes."""
    table = _table(
        "Speed of data parallelism, from measurements on this machine", ("processes", "number"),
        ("same step, shared (Amdahl)", "number"), ("larger step (Gustafson)", "number"),
    )  # fmt: skip
    for each in found:
        table.add_row(str(each.processes), f"{each.amdahl:.2f}x", f"{each.gustafson:.2f}x")
    return table


def fit_lines(fit: Fit, fits: bool, needed: int, capacity: int, original: Footprint) -> list[str]:
    """Returns the lines that name the overrides to add, or the smallest memory if nothing fits."""
    if fits and not fit.overrides:
        return [f"It fits {format_bytes(capacity)} as it is: {format_bytes(needed)}."]
    compute = fit.footprint.flops * original.rows / (original.flops * fit.footprint.rows) if original.flops else 1.0
    lines = _indented(fit.overrides)
    slower = f", {compute:.2f} times the compute" if compute > 1.005 else ""
    if fits:
        return [f"It fits {format_bytes(capacity)} with these: {format_bytes(needed)}{slower}.", *lines]
    return [
        f"No combination of settings fits {format_bytes(capacity)}. The smallest needs {format_bytes(needed)}, with",
        *lines,
        "Use shorter inputs, a smaller model, or several devices (see --processes).",
    ]


_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, option: str) -> int:
    """Parses a size such as `16GiB` or `800 MB`, or for `--bandwidth` a rate such as `25GB/s`.

    Args:
        text: the received text.
        option: the option to name in errors.

    Returns:
        Bytes, or bytes per second.

    Raises:
        InputError: if the text is not a number with a unit of bytes, or is 0.
    """
    # pydantic's ByteSize accepts `16` and bits, which are mistakes here.
    rate = option == "--bandwidth"
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?i?)B" + ("/s" if rate else "") + r"\s*", text)
    if match is None or match[2] == "i" or not float(match[1]):
        example = "25GB/s (bytes: a network of 200 Gbit/s has 25GB/s)" if rate else "16GiB or 24GB"
        raise InputError(f"{option}: received {text!r}; write a number and a unit, for instance {example}")
    return round(float(match[1]) * _SIZES[match[2].lower()])


def show_flops(count: float) -> str:
    """Formats a number of floating-point operations with three digits and a unit."""
    for unit in ("MFLOP", "GFLOP", "TFLOP", "PFLOP"):
        count /= 1e6 if unit == "MFLOP" else 1e3
        if count < 999.5:
            break
    return f"{count:.3g} {unit}"

"""Line charts and tables as text, for terminals of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toolkit.base.console import rich_console
from toolkit.document.axis import Axis, axis
from toolkit.document.blocks import Table, shown

COLUMNS, ROWS = 66, 14
"""Characters of the plot, without its axis."""


def text_chart(
    xs: Sequence[float], ys: Sequence[float], marks: Mapping[str, float], x_label: str, y_label: str
) -> list[str]:
    """Draws a line over a logarithmic horizontal axis.

    Args:
        xs: `[N]` positive values.
        ys: `[N]` values; NaN leaves a gap.
        marks: values of x to mark, by a letter each.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.

    Returns:
        Lines of at most 80 characters.
    """
    x = axis(np.asarray(xs, dtype=float), 0, COLUMNS - 1, log=True)
    y = axis(np.asarray(ys, dtype=float), ROWS - 1, 0)
    cells = [[" "] * COLUMNS for _ in range(ROWS)]
    columns, rows = x.place(np.asarray(xs, dtype=float)), y.place(np.asarray(ys, dtype=float))
    there = np.isfinite(rows)
    for column in range(round(columns[there].min()), round(columns[there].max()) + 1):
        cells[round(float(np.interp(column, columns[there], rows[there])))][column] = "*"
    for letter, value in marks.items():
        column = round(float(x.place(np.asarray([value]))[0]))
        for row in cells:
            row[column] = "|" if row[column] == " " else row[column]
        cells[0][column] = letter
    names = dict(_names(y))
    wide = max(len(name) for name in names.values())
    lines = [f"{names.get(number, ''):>{wide}} |{''.join(row).rstrip()}" for number, row in enumerate(cells)]
    return [y_label, *lines, f"{' ' * wide} +{'-' * COLUMNS}", f"{' ' * wide}  {_below(x)}", f"{' ' * wide}  {x_label}"]


def _names(y: Axis) -> list[tuple[int, str]]:
    """Returns the rows of the ticks with their labels."""
    return [(round(float(y.place(np.asarray([value]))[0])), name) for value, name in y.ticks]


def _below(x: Axis) -> str:
    """Returns the line of the horizontal axis's labels; those that would touch the one before are left out."""
    line = ""
    for value, name in x.ticks:
        column = round(float(x.place(np.asarray([value]))[0]))
        start = max(0, min(column - len(name) // 2, COLUMNS - len(name)))
        if not line or start > len(line):
            line = f"{line:<{start}}{name}"
    return line


def print_table(table: Table) -> None:
    """Prints a table, 80 columns wide if the output is a file or a pipe."""
    from rich import table as rich

    drawn = rich.Table(title=table.caption or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name, numeric in zip(table.header, table.numeric, strict=True):
        drawn.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(shown, row))
    rich_console().print(drawn)

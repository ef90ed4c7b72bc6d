"""Draws `flow.png`, the diagram in the README: `python docs/images/make_flow.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

INK, MUTED, LINE, CARD, WHITE = "#1e293b", "#526076", "#94a3b8", "#f8fafc", "#ffffff"
RANK = ("#bfdbfe", "#fed7aa")
STAGES = (
    ("YAML", "one file", "recipes/configs/"),
    ("config", "all checked first", "toolkit/config/"),
    ("task", "loss and metrics", "recipes/<task>.py"),
    ("data", "rows to tokens", "toolkit/data/"),
    ("run", "start to end", "toolkit/run.py"),
    ("engine", "loop | trainer", "toolkit/engine/"),
    ("report", "model, numbers", "toolkit/report/"),
)
ROWS = (5, 0, 7, 2, 6, 1, 4, 3)
SPLITS = (
    ("1 process, batch 8", [[ROWS]]),
    ("1 process, batch 2, accumulation 4", [[ROWS[0:2], ROWS[2:4], ROWS[4:6], ROWS[6:8]]]),
    ("2 processes, batch 2, accumulation 2", [[ROWS[0:2], ROWS[4:6]], [ROWS[2:4], ROWS[6:8]]]),
)
CELL = 0.34


def box(ax: Axes, x: float, y: float, width: float, height: float, face: str, edge: str = LINE) -> None:
    """Draws a rounded box with its lower left corner at (x, y)."""
    style = "round,pad=0,rounding_size=0.09"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=1.1))


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0) -> None:
    """Draws an arrow."""
    curve = f"arc3,rad={bend}"
    style = "-|>,head_length=5,head_width=3"
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle=style, connectionstyle=curve, color=MUTED, linewidth=1.3))


def stages(ax: Axes, y: float) -> None:
    """Draws the way from the YAML to the report, each stage with the file that owns it."""
    width, height, step = 1.36, 0.78, 1.69
    for number, (name, what, where) in enumerate(STAGES):
        x = 0.25 + number * step
        engine = name == "engine"
        box(ax, x, y, width, height, "#dbeafe" if engine else WHITE, "#3b82f6" if engine else LINE)
        ax.text(x + width / 2, y + 0.51, name, ha="center", va="center", color=INK, fontsize=11.5, fontweight="bold")
        ax.text(x + width / 2, y + 0.22, what, ha="center", va="center", color=MUTED, fontsize=9)
        ax.text(x + width / 2, y - 0.2, where, ha="center", va="center", color=MUTED, fontsize=8, family="monospace")
        if number:
            arrow(ax, (x - step + width + 0.03, y + height / 2), (x - 0.03, y + height / 2))


def split(ax: Axes, x: float, y: float, title: str, ranks: list[list[tuple[int, ...]]]) -> None:
    """Draws one window's rows as a number of processes sees them: a line a process, a group a micro-batch."""
    ax.text(x, y + 0.62, title, ha="left", va="center", color=INK, fontsize=10.5, fontweight="bold")
    for rank, batches in enumerate(ranks):
        top = y - 0.03 - rank * 0.5 + (0.05 if len(ranks) > 1 else -0.2)
        left = x
        if len(ranks) > 1:
            ax.text(x, top + CELL / 2, f"rank {rank}", ha="left", va="center", color=MUTED, fontsize=9)
            left += 0.62
        for batch in batches:
            for row in batch:
                ax.add_patch(Rectangle((left, top), CELL, CELL, facecolor=RANK[rank], edgecolor=MUTED, linewidth=0.9))
                ax.text(left + CELL / 2, top + CELL / 2, str(row), ha="center", va="center", color=INK, fontsize=10)
                left += CELL
            left += 0.12


def main() -> None:
    """Draws the diagram and writes it next to this file."""
    figure = plt.figure(figsize=(12, 4.9), dpi=150)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 12), ylim=(0, 4.9))
    ax.axis("off")
    # A card of its own, so that it reads the same on a white and on a dark page.
    box(ax, 0.05, 0.05, 11.9, 4.8, CARD)
    stages(ax, 3.75)
    ax.plot((0.35, 11.65), (3.2, 3.2), color=LINE, linewidth=0.8)
    title = "One step trains on one window of rows, however it is split"
    ax.text(0.35, 2.88, title, ha="left", va="center", color=INK, fontsize=12, fontweight="bold")
    lefts = (0.35, 3.95, 8.1)
    for x, (name, ranks) in zip(lefts, SPLITS, strict=True):
        split(ax, x, 1.72, name, ranks)
    box(ax, 2.35, 0.27, 7.3, 0.55, "#dcfce7", "#22c55e")
    equation = "sum of the losses over all micro-batches and ranks  /  items in the window  =  the same update"
    ax.text(6.0, 0.545, equation, ha="center", va="center", color=INK, fontsize=10.5)
    arrow(ax, (1.75, 1.32), (3.2, 0.86), 0.12)
    arrow(ax, (5.6, 1.32), (5.9, 0.86))
    arrow(ax, (9.6, 1.1), (8.9, 0.86), -0.1)
    figure.savefig(Path(__file__).with_name("flow.png"), transparent=True)


if __name__ == "__main__":
    main()

"""What the report of a run shows, for trackers: its figures as pictures, its predictions and samples as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from toolkit.api.exhibits import Exhibits
from toolkit.api.run import Run
from toolkit.document import plots
from toolkit.document.blocks import Cell, Code, Figure, Section, Table
from toolkit.metrics.score import without_classes
from toolkit.report.curves import charts
from toolkit.report.sections import EXAMPLES, SAMPLES, WORST, Outcome


def exhibits(run: Run, outcome: Outcome, parts: Sequence[Section], page: str) -> Exhibits:
    """Returns what trackers show of a finished run.

    Args:
        run: the run.
        outcome: its results.
        parts: the sections of its report.
        page: the report as HTML.
    """
    history = [without_classes(line, run.task.scores) for line in outcome.history]
    drawn = [(chart.title, chart.label, chart.lines) for chart in charts(history, run.best.name)]
    return Exhibits(
        step=outcome.result.steps,
        results=outcome.figures,
        pictures=({"Curves": plots.curves(drawn)} if drawn else {}) | dict(_pictures(parts)),
        tables={part.title: table for part in parts for table in _tables(part)},
        page=page,
    )


def _pictures(parts: Sequence[Section]) -> Iterator[tuple[str, bytes]]:
    """Yields the pictures of a report, and the tables with shades, which are confusion matrices, as pictures."""
    for part in parts:
        for block in part.blocks:
            if isinstance(block, Figure) and block.png:
                yield part.title, block.png
            elif isinstance(block, Table) and (counts := _shaded(block)) is not None:
                yield part.title, plots.confusion(counts, block.header[1:])


def _shaded(table: Table) -> np.ndarray | None:
    """Returns the values of a table whose cells, after the first of each row, all have a shade; otherwise None."""
    cells = [cell for _, *row in table.rows for cell in row]
    if not cells or not all(isinstance(cell, Cell) and cell.shade is not None for cell in cells):
        return None
    return np.array([cell.value for cell in cells]).reshape(len(table.rows), -1)


def _tables(part: Section) -> Iterator[Table]:
    """Yields the predictions, or the generated texts, of a section."""
    if part.title in (WORST, EXAMPLES):
        yield from (block for block in part.blocks if isinstance(block, Table))
    if part.title == SAMPLES:
        yield Table(["sample"], [[block.text] for block in part.blocks if isinstance(block, Code)])

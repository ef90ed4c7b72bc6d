"""Report tables with scores per class, label or target, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from toolkit.base.files import write_bytes
from toolkit.base.run_folder import RunFolder
from toolkit.document import plots
from toolkit.document.blocks import Cell, Figure, Table


def score_table(
    labels: Sequence[str],
    metrics: Mapping[str, float],
    names: Sequence[str],
    counts: np.ndarray | Sequence[int],
    counted: str = "rows",
) -> Table:
    """Returns a table with the scores `<name>/<label>` and the number of rows (or of `counted`) of each label."""
    rows = [
        [label, *(Cell(f"{score:.3f}", score) for name in names for score in [metrics[f"{name}/{label}"]]), int(count)]
        for label, count in zip(labels, counts, strict=True)
    ]
    return Table(["label", *names, counted], rows, sortable=True)


def confusion(counts: np.ndarray, labels: Sequence[str], name: str, folder: Path) -> Table | Figure:
    """Returns the confusion matrix of `[true, predicted]` counts, shaded by shares of the true class.

    One of too many classes for a table is the image `confusion_<name>.png` in `folder`.
    """
    title = f"Predicted classes (columns) of the {name} rows, by true class"
    if len(labels) > plots.MOST_COUNTED_CLASSES:  # a table would be too wide
        file = RunFolder(folder).confusion(name)
        png = plots.confusion(counts, labels)
        write_bytes(file, png)
        return Figure(title, png=png, file=file.name)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    rows = [
        [label, *(Cell(f"{count:,}", int(count), float(share)) for count, share in zip(*pair, strict=True))]
        for label, *pair in zip(labels, counts, shares, strict=True)
    ]
    return Table(["true class", *labels], rows, caption=title)

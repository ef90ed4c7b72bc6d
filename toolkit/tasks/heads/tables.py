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
    """Returns a table with the scores and the number of rows of each label.

    Args:
        labels: names of the classes, labels or numbers.
        metrics: metrics, including `<score>/<label>` for each of `names`.
        names: names of the scores.
        counts: number of rows of each label, `[labels]`.
        counted: what is counted, if not rows.
    """
    rows = [
        [label, *(Cell(f"{score:.3f}", score) for name in names for score in [metrics[f"{name}/{label}"]]), int(count)]
        for label, count in zip(labels, counts, strict=True)
    ]
    return Table(["label", *names, counted], rows, sortable=True)


def confusion(counts: np.ndarray, labels: Sequence[str], name: str, folder: Path) -> Table | Figure:
    """Returns the confusion matrix; cells are shaded by their share of the true class.

    Args:
        counts: `[classes, classes]`, true by predicted class.
        labels: names of the classes.
        name: name of the evaluation set.
        folder: folder for the image `confusion_<name>.png`, if there are too many classes for a table.
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

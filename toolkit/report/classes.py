"""A table of scores per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def per_class_table(labels: Sequence[str], metrics: Mapping[str, float], counts: np.ndarray) -> str:
    """Formats precision, recall and F1 of each class, and its number of rows, as a Markdown table.

    Args:
        labels: names of the classes.
        metrics: with `precision/<name>`, `recall/<name>` and `f1/<name>`.
        counts: `[classes]` rows of each class.
    """
    lines = ["| class | precision | recall | F1 | rows |", "|---|---|---|---|---|"]
    for label, count in zip(labels, counts, strict=True):
        scores = " | ".join(f"{metrics[f'{name}/{label}']:.3f}" for name in ("precision", "recall", "f1"))
        lines.append(f"| {label} | {scores} | {int(count):,} |")
    return "\n".join(lines)

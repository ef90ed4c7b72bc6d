"""A table of scores per class, label or number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toolkit.report.text import cell


def score_table(
    labels: Sequence[str], metrics: Mapping[str, float], names: Sequence[str], counts: np.ndarray | Sequence[int]
) -> str:
    """Formats the scores of each label, and its number of rows, as a Markdown table.

    Args:
        labels: names of the classes, labels or numbers.
        metrics: with `<score>/<label>` for each of `names`.
        names: the scores.
        counts: `[labels]` rows of each label.
    """
    lines = [f"| label | {' | '.join(names)} | rows |", "|---" * (len(names) + 2) + "|"]
    for label, count in zip(labels, counts, strict=True):
        scores = " | ".join(f"{metrics[f'{name}/{label}']:.3f}" for name in names)
        lines.append(f"| {cell(label)} | {scores} | {int(count):,} |")
    return "\n".join(lines)

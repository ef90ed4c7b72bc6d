"""Scores of multi-label classification, computed by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from toolkit.metrics.score import Score
from toolkit.metrics.targets import Targets

MULTI_LABEL = (Score("f1_micro"), Score("f1_macro"), Score("subset_accuracy"))
"""The scores over all labels."""
PER_LABEL = ("precision", "recall", "f1")


def multi_label_scores(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> dict[str, float]:
    """Scores predicted labels, any number of them per row.

    Args:
        predictions: `[rows, labels]` of 0 and 1.
        references: `[rows, labels]` of 0 and 1; NaN for unknown values, which are not scored.
        labels: names of the labels.

    Returns:
        `f1_micro`, `f1_macro`, `subset_accuracy` (the share of rows with all labels right, among rows whose labels are
        all known) and, for each label, `precision/<name>`, `recall/<name>` and `f1/<name>`; all from 0 to 1, and 0.0
        where undefined.
    """
    targets = Targets(predictions, references)
    per_label = [_scores(*pair) for pair in targets.columns()]
    true, predicted = targets.complete_rows()
    right = (true == predicted).all(axis=1)
    return {
        "f1_micro": _scores(*targets.items())[2],
        "f1_macro": float(np.mean([scores[2] for scores in per_label])),
        "subset_accuracy": float(right.mean()) if len(right) else 0.0,
        **{
            f"{name}/{label}": scores[place]
            for place, name in enumerate(PER_LABEL)
            for label, scores in zip(labels, per_label, strict=True)
        },
    }


def _scores(true: np.ndarray, predicted: np.ndarray) -> tuple[float, float, float]:
    """Returns precision, recall and F1 of `[items]` values of 0 and 1."""
    from sklearn.metrics import precision_recall_fscore_support

    if not len(true):
        return 0.0, 0.0, 0.0
    precision, recall, f1, _ = precision_recall_fscore_support(
        true, predicted, labels=[0.0, 1.0], pos_label=1.0, average="binary", zero_division=0.0
    )
    return float(precision), float(recall), float(f1)

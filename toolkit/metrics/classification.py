"""Scores of single-label classification, computed by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from toolkit.metrics.score import Score

CLASSIFICATION = (
    Score("accuracy"),
    Score("f1_macro"),
    Score("precision_macro"),
    Score("recall_macro"),
    Score("mcc"),
)
"""The scores over all classes."""
PER_CLASS = ("precision", "recall", "f1")


def classification_scores(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> dict[str, float]:
    """Scores predicted classes.

    Args:
        predictions: `[rows]` class ids, which index `labels`.
        references: `[rows]` true class ids.
        labels: names of all classes.

    Returns:
        `accuracy`, `precision_macro`, `recall_macro`, `f1_macro` and, for each class, `precision/<name>`,
        `recall/<name>` and `f1/<name>`, all from 0 to 1, and Matthews' correlation `mcc`, from -1 to 1. Macro averages
        are over all of `labels`. Undefined scores (of a class without rows or predictions, or the correlation of a
        single class) are 0.0.

    Raises:
        ValueError: for a repeated class name or an id outside `labels`.
    """
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    if len(set(labels)) != len(labels):
        raise ValueError(f"labels must be different names, got {list(labels)}")
    present = np.union1d(predictions, references)
    if present[0] < 0 or present[-1] >= len(labels):
        raise ValueError(
            f"class ids must be 0 to {len(labels) - 1} ({len(labels)} labels), got {present[0]} to {present[-1]}"
        )
    values = precision_recall_fscore_support(references, predictions, labels=range(len(labels)), zero_division=0.0)
    per_class = dict(zip(PER_CLASS, values[:3], strict=True))
    return {
        "accuracy": float(accuracy_score(references, predictions)),
        **{f"{name}_macro": float(each.mean()) for name, each in per_class.items()},
        "mcc": mcc(references, predictions),
        **{f"{name}/{label}": float(each[i]) for name, each in per_class.items() for i, label in enumerate(labels)},
    }


def mcc(references: ArrayLike, predictions: ArrayLike) -> float:
    """Returns Matthews' correlation, from -1 to 1; 0.0 if there is only one class.

    Args:
        references: `[rows]` true class ids.
        predictions: `[rows]` class ids.
    """
    from sklearn.metrics import matthews_corrcoef

    # scikit-learn also returns 0.0 for a single class, but warns.
    return float(matthews_corrcoef(references, predictions)) if len(np.union1d(references, predictions)) > 1 else 0.0

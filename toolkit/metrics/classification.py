"""Scores of single-label classification, computed by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from toolkit.metrics.intervals import Interval, bootstrap, ratio, wilson
from toolkit.metrics.score import Quality, Score, absent, by_class, compared

CLASSIFICATION = (
    Score("accuracy"), Score("f1_macro"), Score("precision_macro"), Score("recall_macro"),
    Score("mcc"),
)  # fmt: skip
"""The scores over all classes."""
RANKING = (Score("roc_auc"), Score("average_precision"))
"""The scores of `ranking_scores`."""
PER_CLASS = ("precision", "recall", "f1")
UNEVEN_SHARE = 0.6
"""Classes are uneven if the largest has a greater share of the examples."""


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
    from sklearn.metrics import accuracy_score, matthews_corrcoef, precision_recall_fscore_support

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
        # scikit-learn also returns 0.0 for a single class, but warns.
        "mcc": float(matthews_corrcoef(references, predictions)) if len(present) > 1 else 0.0,
        **by_class(PER_CLASS, labels, np.transpose(values[:3])),
    }


def ranking_scores(scores: ArrayLike, truths: ArrayLike) -> dict[str, float]:
    """Scores how well scores `[rows, labels]` rank the rows of each label, given truths of 0, 1 and NaN (unknown).

    Returns the means of ROC AUC and average precision over labels that some rows have and some do not; 0.0 without any,
    or if a score is not finite.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    pairs = [(true[known], each[known]) for each, true in zip(np.transpose(scores), np.transpose(truths), strict=True)
             for known in [~np.isnan(true)] if len(np.unique(true[known])) == 2]  # fmt: skip
    if not pairs or not np.isfinite(scores).all():
        return {score.name: 0.0 for score in RANKING}
    means = (np.mean([score(*pair) for pair in pairs]) for score in (roc_auc_score, average_precision_score))
    return {score.name: float(mean) for score, mean in zip(RANKING, means, strict=True)}


def classification_quality(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> Quality:
    """Returns how far the scores of `classification_scores` can be trusted; the arguments are the same.

    The constant answer is the class with the most examples. With uneven classes, macro F1 is the score to trust, or mcc
    if classes are missing.
    """
    predicted, true = np.asarray(predictions), np.asarray(references)
    counts = np.bincount(true, minlength=len(labels))
    largest, share = int(counts.argmax()), float(counts.max() / len(true))
    constant = classification_scores(np.full_like(true, largest), true, labels)
    accuracy = wilson(float((predicted == true).mean()), len(true))
    uneven, answer, trusted = share > UNEVEN_SHARE, repr(labels[largest]), "accuracy"
    if uneven and share < 1:
        trusted = "f1_macro" if counts.all() else "mcc"
    hints = absent("classes", labels, counts, trusted)
    if trusted == "f1_macro":
        hints = [f"{share:.0%} of the examples are {answer}: trust f1_macro, in which every class counts equally."]
    hints += compared(Score("accuracy"), accuracy, constant["accuracy"], answer, len(true))
    return Quality(
        intervals={"accuracy": accuracy} | _averages(predicted, true, len(labels)),
        constant=f"always {answer}",
        baseline={score.name: constant[score.name] for score in CLASSIFICATION},
        trusted=trusted,
        hints=tuple(hints),
    )


def _averages(predicted: np.ndarray, true: np.ndarray, num_classes: int) -> dict[str, Interval]:
    """Returns intervals of averages over classes from draws of pairs of classes, which are fewer than examples."""
    pairs, counts = np.unique(np.stack([true, predicted]), axis=1, return_counts=True)
    true_class, predicted_class = np.eye(num_classes)[pairs]

    def scores(sums: np.ndarray) -> dict[str, np.ndarray]:
        right, true, predicted = np.split(sums, 3, axis=1)
        size = true.sum(axis=1)
        covariance = right.sum(axis=1) * size - (true * predicted).sum(axis=1)
        variances = (size**2 - (true**2).sum(axis=1)) * (size**2 - (predicted**2).sum(axis=1))
        return {
            "f1_macro": ratio(2 * right, true + predicted).mean(axis=1),
            "precision_macro": ratio(right, predicted).mean(axis=1),
            "recall_macro": ratio(right, true).mean(axis=1),
            "mcc": ratio(covariance, np.sqrt(variances)),
        }

    return bootstrap(np.hstack([true_class * predicted_class, true_class, predicted_class]), scores, counts)

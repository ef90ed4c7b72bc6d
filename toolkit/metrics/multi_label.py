"""Scores of multi-label classification, computed by scikit-learn, and the labels as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from toolkit.metrics.intervals import bootstrap, ratio, wilson
from toolkit.metrics.score import Quality, Score, absent, by_class, compared

Pair = tuple[np.ndarray, np.ndarray]
"""True and predicted values, of the same shape."""


class Targets:
    """Predictions and references, `[rows, targets]` each; a reference of NaN is unknown and does not count."""

    def __init__(self, predictions: ArrayLike, references: ArrayLike) -> None:
        self._predicted, self._true = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
        self._known = ~np.isnan(self._true)

    def items(self) -> Pair:
        """Returns all known values, `[items]`."""
        return self._true[self._known], self._predicted[self._known]

    def columns(self) -> list[Pair]:
        """Returns the known values of each target, `[rows]` each."""
        columns = zip(self._true.T, self._predicted.T, self._known.T, strict=True)
        return [(true[known], predicted[known]) for true, predicted, known in columns]

    def complete_rows(self) -> Pair:
        """Returns the rows whose values are all known, `[rows, targets]`."""
        complete = self._known.all(axis=1)
        return self._true[complete], self._predicted[complete]


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
        **by_class(PER_LABEL, labels, per_label),
    }


def multi_label_quality(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> Quality:
    """Returns how far the scores of `multi_label_scores` can be trusted; the arguments are the same.

    The constant answer is the most frequent set of labels among the rows whose labels are all known.
    """
    predicted, true = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
    known = ~np.isnan(true)
    complete, answers = Targets(predicted, true).complete_rows()
    parts = [(true == 1) & (predicted == 1), true == 1, (predicted == 1) & known]

    def scores(sums: np.ndarray) -> dict[str, np.ndarray]:
        right, true, predicted = np.split(sums, 3, axis=1)
        return {
            "f1_micro": ratio(2 * right.sum(axis=1), true.sum(axis=1) + predicted.sum(axis=1)),
            "f1_macro": ratio(2 * right, true + predicted).mean(axis=1),
        }

    intervals = bootstrap(np.hstack(parts), scores)
    hints = absent("labels", labels, (true == 1).sum(axis=0), "f1_micro")
    if not len(complete):
        return Quality(intervals, hints=tuple(hints))
    sets, counts = np.unique(complete, axis=0, return_counts=True)
    frequent = sets[counts.argmax()]
    constant = multi_label_scores(np.broadcast_to(frequent, true.shape), true, labels)
    names = ", ".join(label for label, given in zip(labels, frequent, strict=True) if given)
    answer = repr(names) if names else "no label"
    micro = intervals.get("f1_micro")
    return Quality(
        intervals={**intervals, "subset_accuracy": wilson(float((complete == answers).all(1).mean()), len(complete))},
        constant=f"always {answer}",
        baseline={score.name: constant[score.name] for score in MULTI_LABEL},
        hints=(*hints, *compared(Score("f1_micro"), micro, constant["f1_micro"], answer, len(true))),
    )


def _scores(true: np.ndarray, predicted: np.ndarray) -> tuple[float, float, float]:
    """Returns precision, recall and F1 of `[items]` values of 0 and 1."""
    from sklearn.metrics import precision_recall_fscore_support

    if not len(true):
        return 0.0, 0.0, 0.0
    precision, recall, f1, _ = precision_recall_fscore_support(
        true, predicted, labels=[0.0, 1.0], pos_label=1.0, average="binary", zero_division=0.0
    )
    return float(precision), float(recall), float(f1)

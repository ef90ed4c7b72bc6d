"""Scores of multi-label classification as an `evaluate.Metric` over scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import evaluate
import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from toolkit.metrics.memory import InMemoryMetric
from toolkit.metrics.targets import Targets, features


class MultiLabelScores(InMemoryMetric):
    """Micro and macro F1, subset accuracy and scores per label.

    `compute(predictions, references, labels)` takes `[rows, labels]` arrays of 0 and 1 and the names of the labels;
    NaN in `references` is not known and not scored. It returns `f1_micro`, `f1_macro`, `subset_accuracy` (rows, of
    those known whole, whose labels are all right) and for each label `precision/<name>`, `recall/<name>`,
    `f1/<name>`. All are fractions; a score with nothing to divide by is 0.0.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Micro and macro F1, subset accuracy, and precision, recall and F1 of each label.",
            citation="Pedregosa et al. 2011, Scikit-learn: Machine Learning in Python, JMLR 12",
            inputs_description="predictions, references: rows of 0 and 1; labels: the names of the labels.",
            features=features(),
        )

    def _compute(
        self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[float]], labels: Sequence[str]
    ) -> dict[str, float]:
        targets = Targets(predictions, references)
        per_label = [_scores(*pair) for pair in targets.columns()]
        true, guessed = targets.whole_rows()
        right = (true == guessed).all(axis=1)
        return {
            "f1_micro": _scores(*targets.items())[2],
            "f1_macro": float(np.mean([scores[2] for scores in per_label])),
            "subset_accuracy": float(right.mean()) if len(right) else 0.0,
            **{
                f"{name}/{label}": scores[place]
                for place, name in enumerate(("precision", "recall", "f1"))
                for label, scores in zip(labels, per_label, strict=True)
            },
        }


def _scores(true: np.ndarray, guessed: np.ndarray) -> tuple[float, float, float]:
    if not len(true):
        return 0.0, 0.0, 0.0
    precision, recall, f1, _ = precision_recall_fscore_support(
        true, guessed, labels=[0.0, 1.0], pos_label=1.0, average="binary", zero_division=0.0
    )
    return float(precision), float(recall), float(f1)

"""Scores of single-label classification as an `evaluate.Metric` over scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import evaluate
import numpy as np
from datasets import Features, Value
from sklearn.metrics import accuracy_score, matthews_corrcoef, precision_recall_fscore_support

from toolkit.metrics.memory import InMemoryMetric


class Classification(InMemoryMetric):
    """Accuracy, macro averages, MCC and per-class scores.

    `compute(predictions=[...], references=[...], labels=["negative", "positive"])` takes class ids, which index
    the class names in `labels`, and returns `accuracy`, `f1_macro`, `precision_macro`, `recall_macro`, `mcc` and for
    each class `precision/<name>`, `recall/<name>`, `f1/<name>`. All are fractions, but for `mcc` (-1 to 1). Macro
    averages are over all of `labels`; a score with nothing to divide by (a class without rows or predictions, MCC
    of a single class) is 0.0.

    Raises:
        ValueError: from `compute`, for a repeated class name or an id outside `labels`.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Accuracy, macro and per-class precision, recall and F1, and the Matthews correlation.",
            citation="Pedregosa et al. 2011, Scikit-learn: Machine Learning in Python, JMLR 12",
            inputs_description="predictions, references: class ids; labels: the class names, by id.",
            features=Features(predictions=Value("int64"), references=Value("int64")),
        )

    def _compute(
        self, predictions: Sequence[int], references: Sequence[int], labels: Sequence[str]
    ) -> dict[str, float]:
        if len(set(labels)) != len(labels):
            raise ValueError(f"labels must be different names, got {list(labels)}")
        present = np.union1d(predictions, references)
        if present[0] < 0 or present[-1] >= len(labels):
            raise ValueError(
                f"class ids must be 0 to {len(labels) - 1} ({len(labels)} labels), got {present[0]} to {present[-1]}"
            )
        per_class = precision_recall_fscore_support(
            references, predictions, labels=range(len(labels)), zero_division=0.0
        )[:3]
        named = dict(zip(("precision", "recall", "f1"), per_class, strict=True))
        return {
            "accuracy": float(accuracy_score(references, predictions)),
            **{f"{name}_macro": float(values.mean()) for name, values in named.items()},
            # scikit-learn warns where there is a single class in all; its value is 0.0 then, too.
            "mcc": float(matthews_corrcoef(references, predictions)) if len(present) > 1 else 0.0,
            **{f"{name}/{label}": float(values[i]) for name, values in named.items() for i, label in enumerate(labels)},
        }

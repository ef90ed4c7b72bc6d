"""Scores of regression as an `evaluate.Metric` over scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import evaluate
import numpy as np
from sklearn.feature_selection import r_regression
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from toolkit.metrics.memory import InMemoryMetric
from toolkit.metrics.targets import Targets, features


class RegressionScores(InMemoryMetric):
    """Mean squared and absolute error, R2 and Pearson's correlation.

    `compute(predictions, references, labels)` takes `[rows, targets]` arrays and the names of the targets; NaN in
    `references` is not known and not scored. It returns `mse` and `mae` over all items, `r2` and `pearson` as means
    over targets and, of several targets, each one's `<score>/<name>`. R2 and the correlation of fewer than two
    values, or of values that are all the same, are 0.0.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Mean squared error, mean absolute error, R2 and Pearson's correlation.",
            citation="Pedregosa et al. 2011, Scikit-learn: Machine Learning in Python, JMLR 12",
            inputs_description="predictions, references: rows of numbers; labels: the names of the targets.",
            features=features(),
        )

    def _compute(
        self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[float]], labels: Sequence[str]
    ) -> dict[str, float]:
        targets = Targets(predictions, references)
        per_target = [_scores(*pair) for pair in targets.columns()]
        result = {
            "mse": float(mean_squared_error(*targets.items())),
            "mae": float(mean_absolute_error(*targets.items())),
            **{name: float(np.mean([scores[name] for scores in per_target])) for name in ("r2", "pearson")},
        }
        if len(labels) > 1:
            named = zip(labels, per_target, strict=True)
            result |= {f"{name}/{label}": value for label, scores in named for name, value in scores.items()}
        return result


def _scores(true: np.ndarray, guessed: np.ndarray) -> dict[str, float]:
    if len(true) < 2 or np.ptp(true) == 0:
        return {"r2": 0.0, "pearson": 0.0}
    varies = np.ptp(guessed) > 0
    return {
        "r2": float(r2_score(true, guessed)),
        "pearson": float(r_regression(guessed[:, None], true)[0]) if varies else 0.0,
    }

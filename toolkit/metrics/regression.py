"""Scores of regression, computed by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from toolkit.metrics.score import Score
from toolkit.metrics.targets import Targets

REGRESSION = (
    Score("mse", greater_is_better=False),
    Score("mae", greater_is_better=False),
    Score("r2"),
    Score("pearson"),
)
"""The scores over all targets."""
PER_TARGET = ("r2", "pearson")


def regression_scores(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> dict[str, float]:
    """Scores predicted numbers.

    Args:
        predictions: `[rows, targets]` predicted values.
        references: `[rows, targets]` true values; NaN for unknown values, which are not scored.
        labels: names of the targets.

    Returns:
        `mse` and `mae` over all values, `r2` and Pearson's correlation `pearson` as means over targets and, if there
        are several targets, `r2/<name>` and `pearson/<name>` of each. R2 and the correlation are 0.0 for fewer than two
        values, or if all values are the same.
    """
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    targets = Targets(predictions, references)
    per_target = [_scores(*pair) for pair in targets.columns()]
    result = {
        "mse": float(mean_squared_error(*targets.items())),
        "mae": float(mean_absolute_error(*targets.items())),
        **{name: float(np.mean([scores[name] for scores in per_target])) for name in PER_TARGET},
    }
    if len(labels) > 1:
        named = zip(labels, per_target, strict=True)
        result |= {f"{name}/{label}": value for label, scores in named for name, value in scores.items()}
    return result


def _scores(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Returns R2 and Pearson's correlation of `[rows]` values."""
    from sklearn.feature_selection import r_regression
    from sklearn.metrics import r2_score

    if len(true) < 2 or np.ptp(true) == 0:
        return {"r2": 0.0, "pearson": 0.0}
    varies = np.ptp(predicted) > 0
    return {
        "r2": float(r2_score(true, predicted)),
        "pearson": float(r_regression(predicted[:, None], true)[0]) if varies else 0.0,
    }

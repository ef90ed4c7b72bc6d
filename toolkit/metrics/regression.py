"""Scores of regression, computed by scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from toolkit.metrics.intervals import bootstrap, ratio
from toolkit.metrics.multi_label import Targets
from toolkit.metrics.score import Quality, Score, compared

RMSE = Score("rmse", greater_is_better=False)
REGRESSION = (
    Score("mse", greater_is_better=False),
    RMSE,
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
        `mse`, `rmse` (its root) and `mae` over all values, `r2` and Pearson's correlation `pearson` as means over
        targets and, if there are several targets, `r2/<name>` and `pearson/<name>` of each. R2 and the correlation are
        0.0 for fewer than two values, or if all values are the same.
    """
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    targets = Targets(predictions, references)
    per_target = [_scores(*pair) for pair in targets.columns()]
    mse = float(mean_squared_error(*targets.items()))
    result = {
        "mse": mse,
        "rmse": math.sqrt(mse),
        "mae": float(mean_absolute_error(*targets.items())),
        **{name: float(np.mean([scores[name] for scores in per_target])) for name in PER_TARGET},
    }
    if len(labels) > 1:
        named = zip(labels, per_target, strict=True)
        result |= {f"{name}/{label}": value for label, scores in named for name, value in scores.items()}
    return result


def regression_quality(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> Quality:
    """Returns how far the scores of `regression_scores` can be trusted; the arguments are the same.

    The constant answer is the mean of each target.
    """
    predicted, true = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
    known = ~np.isnan(true)
    errors = np.where(known, predicted - np.nan_to_num(true), 0.0)
    sums = np.stack([(errors**2).sum(axis=1), np.abs(errors).sum(axis=1), known.sum(axis=1)], axis=1)
    means = [float(column.mean()) if len(column) else 0.0 for column, _ in Targets(predicted, true).columns()]
    constant = regression_scores(np.broadcast_to(means, true.shape), true, labels)
    intervals = bootstrap(sums, _mean_errors)
    hints = compared(RMSE, intervals.get("rmse"), constant["rmse"], "the mean", len(true))
    return Quality(
        intervals=intervals,
        constant=f"always the mean ({means[0]:.4g})" if len(means) == 1 else "always the mean of each number",
        baseline={score.name: constant[score.name] for score in REGRESSION if score.name in constant},
        trusted="rmse",
        hints=tuple(hints),
    )


def _mean_errors(sums: np.ndarray) -> dict[str, np.ndarray]:
    squared, absolute, count = sums.T
    mse = ratio(squared, count)
    return {"mse": mse, "rmse": np.sqrt(mse), "mae": ratio(absolute, count)}


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

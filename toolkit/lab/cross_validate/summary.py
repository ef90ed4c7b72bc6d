"""Mean and interval of each score over folds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.lab.cross_validate.folds import Fold

CONFIDENCE = 0.95


def summarised(folds: Sequence[Fold]) -> dict[str, dict[str, Any]]:
    """Returns mean, standard deviation and interval of each score, by its name with prefix.

    A score that is not finite in a fold has no interval.
    """
    names = folds[0].measured["scores"]
    return {
        name: {
            "greater_is_better": score["greater_is_better"],
            **interval([fold.measured["scores"].get(name, {}).get("value", math.nan) for fold in folds]),
        }
        for name, score in names.items()
    }


def interval(values: Sequence[float]) -> Mapping[str, Any]:
    """Returns `mean`, `deviation`, `low`, `high` and `values` of a score over folds.

    The interval is that of a t test with the variance of Nadeau and Bengio (2003, Inference for the Generalization
    Error, Machine Learning 52): folds share most of their training rows, so their scores are not independent, and the
    variance of their mean is larger than a K-th of their variance by the ratio of validation to training rows.

    Args:
        values: `[K]` the score of each fold, at least 2.
    """
    known = [None if value is None or not math.isfinite(value) else value for value in values]
    finite = [value for value in known if value is not None]
    if len(finite) < len(values):
        return {"mean": None, "deviation": None, "low": None, "high": None, "values": known}
    from scipy.stats import t  # takes half a second

    count, mean, deviation = len(finite), statistics.fmean(finite), statistics.stdev(finite)
    variance = (1 / count + 1 / (count - 1)) * deviation**2
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(variance)
    return {"mean": mean, "deviation": deviation, "low": mean - half, "high": mean + half, "values": known}

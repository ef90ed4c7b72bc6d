"""Values per row and target, some of them unknown, for multi-label and regression scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

Pair = tuple[np.ndarray, np.ndarray]
"""True and predicted values, of the same shape."""


class Targets:
    """Predictions and references; only known references count.

    Args:
        predictions: `[rows, targets]` predicted values.
        references: `[rows, targets]` true values; NaN for unknown values.
    """

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

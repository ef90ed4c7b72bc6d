"""Numbers per row and target, some of which are not known: what multi-label and regression scores are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

Pair = tuple[np.ndarray, np.ndarray]
"""True and predicted values, of the same shape."""


class Targets:
    """Predictions beside references.

    Args:
        predictions: `[rows, targets]`.
        references: `[rows, targets]`, NaN where not known.
    """

    def __init__(self, predictions: ArrayLike, references: ArrayLike) -> None:
        self._predicted, self._true = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
        self._known = ~np.isnan(self._true)

    def items(self) -> Pair:
        """Returns `[items]` every known value."""
        return self._true[self._known], self._predicted[self._known]

    def columns(self) -> list[Pair]:
        """Returns for each target the `[rows]` whose value is known."""
        columns = zip(self._true.T, self._predicted.T, self._known.T, strict=True)
        return [(true[known], predicted[known]) for true, predicted, known in columns]

    def complete_rows(self) -> Pair:
        """Returns `[rows, targets]` the rows whose values are all known."""
        complete = self._known.all(axis=1)
        return self._true[complete], self._predicted[complete]

"""Numbers per row and target, some of which are not known: what multi-label and regression scores are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from datasets import Features, List, Value

Pair = tuple[np.ndarray, np.ndarray]
"""True and predicted values, of the same shape."""


def features() -> Features:
    """Returns the types of `[rows, targets]` predictions and references."""
    return Features(predictions=List(Value("float64")), references=List(Value("float64")))


class Targets:
    """Predictions beside references.

    Args:
        predictions: `[rows, targets]`.
        references: `[rows, targets]`, NaN where not known.
    """

    def __init__(self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[float]]) -> None:
        self._guessed, self._true = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
        self._known = ~np.isnan(self._true)

    def items(self) -> Pair:
        """Returns `[items]` all that is known."""
        return self._true[self._known], self._guessed[self._known]

    def columns(self) -> list[Pair]:
        """Returns for each target `[rows]` what is known of it."""
        columns = zip(self._true.T, self._guessed.T, self._known.T, strict=True)
        return [(true[known], guessed[known]) for true, guessed, known in columns]

    def whole_rows(self) -> Pair:
        """Returns `[rows, targets]` the rows of which all is known."""
        whole = self._known.all(axis=1)
        return self._true[whole], self._guessed[whole]

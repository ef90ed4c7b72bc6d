"""Sums of blocks per document."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from toolkit.tasks.blocks import by_document


def test_some_of_the_blocks_are_summed_as_all_are() -> None:
    features = Dataset.from_dict({"example": [0, 2, 3], "targets": [[1, 1, 1], [1, 1], [1]]})
    sums = {"loss": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0], [6.0, 0.0, 0.0]])}
    assert by_document(sums, features, 4)["loss"].tolist() == [1.0, 2.0, 3.0 + 4.0, 5.0 + 6.0]
    # As a bootstrap draws them: no block with three parts.
    drawn = np.array([1, 2, 2])
    some = by_document({"loss": sums["loss"][drawn]}, features.select(drawn), 4)
    assert some["loss"].tolist() == [0.0, 0.0, 4.0, 5.0 + 6.0 + 6.0]

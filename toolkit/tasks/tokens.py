"""Labels and losses of models that predict something at each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from toolkit.api.task import IGNORE_INDEX


def pad_labels(labels: Sequence[Sequence[int] | np.ndarray], input_ids: Tensor) -> Tensor:
    """Returns labels as `[B, T]` int64, padded on the right with `IGNORE_INDEX` to the shape of the input ids."""
    padded = torch.full_like(input_ids, IGNORE_INDEX)
    for place, row in zip(padded, labels, strict=True):
        place[: len(row)] = torch.as_tensor(row)
    return padded


def token_losses(logits: Tensor, labels: Tensor, reduction: str = "sum", label_smoothing: float = 0.0) -> Tensor:
    """Returns the cross entropy of tokens.

    Args:
        logits: `[B, T, classes]`.
        labels: `[B, T]` class ids; `IGNORE_INDEX` is ignored.
        reduction: `sum` for a scalar, `none` for `[B, T]`.
        label_smoothing: part of each label's probability that is distributed over all classes.
    """
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    return losses.view_as(labels) if reduction == "none" else losses

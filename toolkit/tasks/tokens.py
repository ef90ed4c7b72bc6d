"""Labels and losses of models that predict something at each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.api.batch import IGNORE_INDEX

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def pad_labels(labels: Sequence[Sequence[int] | np.ndarray], input_ids: Tensor) -> Tensor:
    """Returns labels as `[B, T]` int64, padded on the right with `IGNORE_INDEX` to the shape of the input ids."""
    padded = input_ids.new_full(input_ids.shape, IGNORE_INDEX)
    for place, row in zip(padded, labels, strict=True):
        place[: len(row)] = padded.new_tensor(row)
    return padded


def labelled_positions(labels: Tensor) -> Tensor:
    """Returns the positions `[n]` of labels that are not ignored, in the flattened labels."""
    return (labels.flatten() != IGNORE_INDEX).nonzero().squeeze(-1)


def token_losses(
    logits: Tensor, labels: Tensor, reduction: str = "sum", label_smoothing: float = 0.0, labelled: Tensor | None = None
) -> Tensor:
    """Returns the cross entropy of tokens.

    Args:
        logits: `[B, T, classes]`, or `[1, n, classes]` at the labelled positions.
        labels: `[B, T]` class ids; `IGNORE_INDEX` is ignored.
        reduction: `sum` for a scalar, `none` for `[B, T]`.
        label_smoothing: part of each label's probability that is distributed over all classes.
        labelled: the labelled positions `[n]`, if the model may have computed only their logits.
    """
    from torch.nn.functional import cross_entropy

    some = labelled is not None and logits.shape[:2] != labels.shape
    targets = labels.flatten()[labelled] if some else labels.flatten()
    if (chunked := getattr(logits, "cross_entropy", None)) is not None:  # `toolkit.models.chunked.Deferred`
        losses: Tensor = chunked(targets, reduction, label_smoothing)
    else:
        losses = cross_entropy(
            logits.flatten(0, 1), targets, ignore_index=IGNORE_INDEX, reduction=reduction,
            label_smoothing=label_smoothing,
        )  # fmt: skip
    return losses if reduction == "sum" else _spread(losses, labels, labelled if some else None)


def are_correct(logits: Tensor, labels: Tensor, labelled: Tensor | None = None) -> Tensor:
    """Returns whether the most likely class is the label, `[B, T]`; arguments are those of `token_losses`."""
    found = logits.argmax(-1)
    if labelled is None or found.shape == labels.shape:
        return found == labels  # never so where a label is ignored
    return _spread(found.flatten() == labels.flatten()[labelled], labels, labelled)


def _spread(values: Tensor, labels: Tensor, labelled: Tensor | None) -> Tensor:
    """Returns values `[n]` at the labelled positions in the shape of the labels, with 0 elsewhere."""
    if labelled is None:
        return values.view_as(labels)
    return values.new_zeros(labels.numel()).index_copy(0, labelled, values).view_as(labels)

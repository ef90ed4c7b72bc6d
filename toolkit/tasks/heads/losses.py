"""Losses per item, so that they can be summed and divided by what was counted.

Both know label smoothing (Szegedy et al. 2015, arXiv 1512.00567) and the focal loss (Lin et al. 2017, arXiv
1708.02002): each part of a smoothed target costs `-(1 - p) ** gamma * log(p)`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, one_hot


def softmax_losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0, gamma: float = 0.0) -> Tensor:
    """Returns the loss of each row, `[B]`.

    Args:
        logits: `[B, N]`.
        labels: `[B]` int64 class ids, none of them ignored.
        smoothing: part of each label that is spread evenly over all N classes.
        gamma: exponent of the focal loss; 0 is cross entropy.
    """
    if not gamma:
        return cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    log_p = logits.log_softmax(-1)
    targets = one_hot(labels, logits.shape[-1]) * (1 - smoothing) + smoothing / logits.shape[-1]
    return -(targets * _unsure(log_p, gamma) * log_p).sum(-1)


def sigmoid_losses(logits: Tensor, targets: Tensor, smoothing: float = 0.0, gamma: float = 0.0) -> Tensor:
    """Returns the loss of each item, of the shape of `logits`.

    Args:
        logits: any shape.
        targets: 0 to 1, of the same shape.
        smoothing: part of each target that is spread evenly over yes and no.
        gamma: exponent of the focal loss; 0 is binary cross entropy.
    """
    targets = targets * (1 - smoothing) + smoothing / 2
    yes, no = logsigmoid(logits), logsigmoid(-logits)
    return -(targets * _unsure(yes, gamma) * yes + (1 - targets) * _unsure(no, gamma) * no)


def _unsure(log_p: Tensor, gamma: float) -> Tensor:
    """`(1 - p) ** gamma`, away from 0, where a gamma below 1 has no finite slope."""
    return (
        torch.ones_like(log_p) if not gamma else (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).eps) ** gamma
    )

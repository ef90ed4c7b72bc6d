"""Losses per item, to be summed and divided by the number of items, and shares of rows.

Both support label smoothing (Szegedy et al. 2015, arXiv 1512.00567) and the focal loss (Lin et al. 2017, arXiv
1708.02002), whose term for each target is `-(1 - p) ** gamma * log(p)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def softmax_losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0, gamma: float = 0.0) -> Tensor:
    """Returns the loss `[B]` of logits `[B, N]`, given class ids `[B]`; `smoothing` is spread over all classes."""
    from torch.nn.functional import cross_entropy, one_hot

    if not gamma:
        return cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    log_p = logits.log_softmax(-1)
    targets = one_hot(labels, logits.shape[-1]) * (1 - smoothing) + smoothing / logits.shape[-1]
    return -(targets * _unsure(log_p, gamma) * log_p).sum(-1)


def sigmoid_losses(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0, gamma: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Returns the loss of each item of logits, given targets from 0 to 1; `smoothing` is spread over 0 and 1.

    `weights` `[N]` multiply the terms of positive targets, as torch's `pos_weight`.
    """
    from torch.nn.functional import logsigmoid

    targets = targets * (1 - smoothing) + smoothing / 2
    yes, no = logsigmoid(logits), logsigmoid(-logits)
    positive = targets if weights is None else targets * weights
    return -(positive * _unsure(yes, gamma) * yes + (1 - targets) * _unsure(no, gamma) * no)


def _unsure(log_p: Tensor, gamma: float) -> Tensor:
    """Returns `(1 - p) ** gamma`, clamped away from 0, where the slope is infinite for gamma below 1."""
    import torch

    return (
        torch.ones_like(log_p) if not gamma else (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).eps) ** gamma
    )


def shared(values: Tensor, shares: Tensor | None) -> Tensor:
    """Returns values `[B]` or `[B, N]` times the share `[B]` of their row; None for 1."""
    return values if shares is None else values * shares.view(-1, *[1] * (values.ndim - 1)).to(values.device)

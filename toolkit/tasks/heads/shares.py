"""Rows that count in part, as those of mixtures do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def shared(values: Tensor, shares: Tensor | None) -> Tensor:
    """Returns values `[B]` or `[B, N]` times the share `[B]` of their row; None for 1."""
    return values if shares is None else values * shares.view(-1, *[1] * (values.ndim - 1)).to(values.device)

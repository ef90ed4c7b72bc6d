"""Moves batches to a device; inputs of 8 bits become the model's numbers there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from toolkit.api.task import Batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Moves a batch to a device and looks its inputs up there (see `looked_up`)."""
    from accelerate.utils import send_to_device

    return looked_up(send_to_device(batch, device, non_blocking=True))


def looked_up(batch: Batch) -> Batch:
    """Replaces inputs that are positions in a table by the numbers in it, on the device of the batch.

    Images are small and quick to move as bytes. One look-up gives exactly the numbers of the model's own image
    processor, on every device, which scaling and normalising with other rounding would not.
    """
    tables = batch.get("tables")
    if tables is None:
        return batch
    rest: Mapping[str, Any] = {name: value for name, value in batch.items() if name != "tables"}
    found = {name: look_up(table, batch["inputs"][name]) for name, table in tables.items()}
    return cast(Batch, {**rest, "inputs": {**batch["inputs"], **found}})


def look_up(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns the numbers `[B, C, ...]` at positions `[B, C, ...]` of a table `[C, N]`."""
    first, *_ = planes = positions.unbind(1)
    rows = zip(table, planes, strict=True)
    return torch.stack(
        [numbers.index_select(0, plane.flatten().int()).view_as(first) for numbers, plane in rows], dim=1
    )

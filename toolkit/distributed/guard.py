"""Detects gradients and parameters that are not finite, and stops every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from toolkit.api.strategy import LostGradient
from toolkit.api.task import Batch
from toolkit.base.errors import RunError
from toolkit.base.shards import local

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator

SHOWN_ROWS = 20
"""Maximum number of rows listed in the message."""


def is_lost(accelerator: Accelerator, grad_norm: float) -> bool:
    """Whether a gradient of this norm must stop the run."""
    scaler = accelerator.scaler
    # fp16: the scaler skips this update and lowers the scale; the run stops only if the scale cannot be lowered.
    return not math.isfinite(grad_norm) and (scaler is None or scaler.get_scale() <= 1)


@torch.no_grad()
def refuse_non_finite(accelerator: Accelerator, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """Stops all ranks if a parameter or buffer of any of them is not finite; every rank must call it.

    Args:
        accelerator: the run's Accelerator.
        tensors: the tensors that this rank has, split or not, by name.
        step: the step after which they are to be saved.

    Raises:
        RunError: naming the step and such a tensor.
    """
    from accelerate.utils import gather_object

    own = {name: local(tensor) for name, tensor in tensors.items()}
    own = {name: tensor for name, tensor in own.items() if tensor.is_floating_point() and tensor.numel()}
    found = None
    if own and not math.isfinite(float(torch.nn.utils.get_total_norm(list(own.values()), math.inf))):
        found = next(name for name, tensor in own.items() if not bool(torch.isfinite(tensor).all()))
    names = [name for name in gather_object([found]) if name is not None]
    if names:
        raise RunError(
            f"step {step}: {names[0]} of the model is not finite; nothing was saved. Earlier checkpoints are intact.\n"
            "  A smaller train.learning_rate, more train.warmup_steps or train.mixed_precision=no usually help, in a "
            "new run with another output_dir."
        )


def row_numbers(rows: datasets.Dataset, batches: Sequence[Batch]) -> list[int]:
    """Returns the numbers in the training file of the rows of micro-batches.

    Args:
        rows: training features, with the column `number`.
        batches: micro-batches with `row_ids`, `[B]` each.
    """
    return [rows[int(row)]["number"] for batch in batches for row in batch["row_ids"] if row >= 0]


def refuse(lost: LostGradient | None) -> NoReturn:
    """Stops all ranks because the gradient of at least one is not finite; every rank must call it.

    Args:
        lost: this rank's gradient, None if it is finite.

    Raises:
        RunError: naming the step and its rows; always.
    """
    from accelerate.utils import gather_object

    found = [each for each in gather_object([lost]) if each is not None]
    numbers = sorted({row for each in found for row in each.rows})
    shown = ", ".join(map(str, numbers[:SHOWN_ROWS])) + (" …" if len(numbers) > SHOWN_ROWS else "")
    raise RunError(
        f"step {found[0].step}: the gradient's norm is {found[0].norm}; training stopped before this update.\n"
        f"  Rows of this step in the training file: {shown}\n"
        "  A smaller train.learning_rate, more train.warmup_steps or train.mixed_precision=no usually help, in a "
        "new run with another output_dir."
    )

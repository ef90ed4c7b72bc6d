"""The last look at a gradient before it becomes an update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from toolkit.api.run import Run
from toolkit.api.task import Batch
from toolkit.base.errors import RunError

SHOWN_ROWS = 20
"""Rows named in the message."""


def refuse_non_finite(run: Run, step: int, grad_norm: float, batches: Sequence[Batch]) -> None:
    """Stops a run before a non-finite update. The norm is that of the exchanged gradient, so all ranks decide alike.

    Args:
        run: the run.
        step: the step, counted from 1.
        grad_norm: norm of its gradient.
        batches: this rank's micro-batches of its window.

    Raises:
        RunError: naming the step and the rows of its window; no parameter has been touched.
    """
    if not is_lost(run, grad_norm):
        return
    rows = row_numbers(run, batches)
    if run.accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        rows = gather_object(rows)
    raise non_finite_error(step, grad_norm, rows)


def is_lost(run: Run, grad_norm: float) -> bool:
    """Says whether a gradient of this norm must not become an update."""
    scaler = run.accelerator.scaler
    # fp16: its scaler leaves this update out and lowers the scale; the run is lost only when it cannot.
    return not math.isfinite(grad_norm) and (scaler is None or scaler.get_scale() <= 1)


def row_numbers(run: Run, batches: Sequence[Batch]) -> list[int]:
    """Returns the numbers of micro-batches' rows in the training file."""
    return [run.data.train[int(row)]["number"] for batch in batches for row in batch["row_ids"] if row >= 0]


def non_finite_error(step: int, grad_norm: float, rows: Iterable[int]) -> RunError:
    """Returns the error that ends a run before a non-finite update of these rows of the training file."""
    numbers = sorted(set(rows))
    shown = ", ".join(map(str, numbers[:SHOWN_ROWS])) + (" …" if len(numbers) > SHOWN_ROWS else "")
    return RunError(
        f"step {step}: the gradient's norm is {grad_norm}; training stopped before this update.\n"
        f"  Rows of this step in the training file: {shown}\n"
        "  A smaller train.learning_rate, more train.warmup_steps or train.mixed_precision=no usually help, in a "
        "new run with another output_dir."
    )

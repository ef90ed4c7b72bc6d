"""The last look at a gradient before it becomes an update."""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolkit.engine.run import Run
from toolkit.errors import RunError
from toolkit.task import Batch

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
    scaler = run.accelerator.scaler
    if math.isfinite(grad_norm) or (scaler is not None and scaler.get_scale() > 1):
        return  # fp16: its scaler leaves this update out and lowers the scale; the run is lost only when it cannot
    rows: list[list[int]] = [[int(row) for batch in batches for row in batch["row_ids"] if row >= 0]]
    if run.accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        rows = gather_object(rows)
    numbers = sorted({run.data.train[row]["number"] for part in rows for row in part})
    shown = ", ".join(map(str, numbers[:SHOWN_ROWS])) + (" …" if len(numbers) > SHOWN_ROWS else "")
    raise RunError(
        f"step {step}: the gradient's norm is {grad_norm}; training stopped before this update.\n"
        f"  Rows of this step in the training file: {shown}\n"
        "  A smaller train.learning_rate, more train.warmup_steps or train.mixed_precision=no usually help, in a "
        "new run with another output_dir."
    )

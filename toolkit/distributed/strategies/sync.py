"""Synchronous training: every step is one update with the gradient of the whole window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch.nn.parallel import DistributedDataParallel

from toolkit.api.task import Batch
from toolkit.engine.callbacks.extensions import Extension
from toolkit.engine.guard import refuse_non_finite

EXCHANGES, EXCHANGED_BYTES = "exchange_collectives", "exchange_bytes"
"""Figures of a run on several processes: collectives, and the bytes that one process gave to them."""


class Sync(Extension):
    """The default, and what another strategy changes: accelerate's wrapper of the model exchanges gradients."""

    wraps_model: ClassVar[bool] = True
    """Whether accelerate wraps the model so that the last backward pass of a window exchanges gradients."""
    failed: bool = False
    """Whether this process has met a gradient that only it knows to be unusable."""

    def begin_step(self, own_items: float, items: float) -> float:
        """Begins a step.

        Args:
            own_items: items of this rank's part of the window.
            items: items of the whole window.

        Returns:
            What this rank multiplies its summed losses by.
        """
        # The wrapper averages gradients over ranks, hence the factor of the number of processes.
        return self.session.run.accelerator.num_processes / items if items else 0.0

    def exchange(self) -> None:
        """Called on every rank when the gradient of its part of the window is complete, before it is clipped."""

    def check_gradient(self, step: int, grad_norm: float, batches: Sequence[Batch]) -> None:
        """Refuses an update that is not finite: on all ranks at once where the gradient is that of all.

        Args:
            step: the step, counted from 1.
            grad_norm: norm of its gradient.
            batches: this rank's micro-batches of its window.

        Raises:
            RunError: naming the step and its rows.
        """
        refuse_non_finite(self.session.run, step, grad_norm, batches)

    def refuse(self) -> None:
        """Called on every rank before a step when one of them has `failed`; raises RunError."""
        raise AssertionError("no process fails alone")

    def result(self) -> dict[str, float]:
        """Returns what this process gave to the exchange in the whole run: gradients in buckets, and buffers."""
        model, steps = self.session.model, self.session.state.step
        if not isinstance(model, DistributedDataParallel):
            return {}
        facts = model._get_ddp_logging_data()
        buckets = str(facts.get("rebuilt_bucket_sizes") or facts["bucket_sizes"]).split(",")
        buffers = [buffer for buffer in model.modules_buffers if model.broadcast_buffers]
        sizes = [*map(int, buckets), *([sum(b.numel() * b.element_size() for b in buffers)] if buffers else [])]
        return {EXCHANGES: float(len(sizes) * steps), EXCHANGED_BYTES: float(sum(sizes) * steps)}

"""How far the gradient is off if activations are stored compressed (`train.activation_compression`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from toolkit.api.batch import Batch, to_device
from toolkit.api.training import Callback, TrainingContext
from toolkit.base.console import say
from toolkit.distributed.window import kept_buffers, seed_all
from toolkit.engine.micro_batches import splitter
from toolkit.models.activations import exact_activations


class CompressionError(Callback):
    """Computes the gradient of one row of the first step with and without compression, and says how they differ.

    It is a single row, since a micro-batch might not fit into the memory without compression. The result is the norm of
    the difference over the norm of the exact gradient, with the same dropout.
    """

    def __init__(self, context: TrainingContext) -> None:
        self.context, self.error = context, math.nan
        self.split = splitter(context.run, context.state, context.milestones)

    def after_gradient(self) -> None:
        """Measures in the first step of a run; the gradient of the step stays as it is."""
        run = self.context.run
        if self.context.state.step > 0:
            return
        rows = next((batch for batch in self.context.window if (batch["row_ids"] >= 0).any()), None)
        if rows is None:
            return
        row = next(self.split(rows, 1))
        exact, compressed = self._gradient(row, exact=True), self._gradient(row, exact=False)
        off, size = (math.sqrt(sum(float(part.double().square().sum()) for part in parts)) for parts in (
            [one - other for one, other in zip(exact, compressed, strict=True)], exact
        ))  # fmt: skip
        self.error = off / size if size else math.nan
        say(
            f"activations are stored in {run.cfg.train.activation_compression}: the gradient of a row differs from the "
            f"exact one by {self.error:.2%} of its norm"
        )

    def _gradient(self, row: Batch, exact: bool) -> list[Tensor]:
        context, run = self.context, self.context.run
        model, batch = context.bare_model, to_device(row, run.accelerator.device)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        seed_all(run.cfg.seed, context.state.step, run.mesh.data_rank)
        with kept_buffers(model), exact_activations() if exact else nullcontext():
            loss = run.task.loss_sum(model(**batch["inputs"]), batch)
            # Not `backward`, which would add to the gradient of the step, and exchange it.
            found = torch.autograd.grad(loss, trained, allow_unused=True)
        return [part for part in found if part is not None]

    def final_metrics(self) -> dict[str, float]:
        """Returns the measured error."""
        return {} if math.isnan(self.error) else {"activation_compression_error": self.error}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the measured error, or None."""
        return {}, {"error": None if math.isnan(self.error) else self.error}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the measured error."""
        self.error = math.nan if values["error"] is None else values["error"]

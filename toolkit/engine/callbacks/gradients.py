"""Callbacks that look at or change gradients: histograms, compression, clipping of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toolkit.api.batch import Batch, to_device
from toolkit.api.exhibits import Histogram
from toolkit.api.training import Callback, Training
from toolkit.base.console import say
from toolkit.base.shards import full
from toolkit.distributed.collectives import objects_of_all, on_main
from toolkit.distributed.window import clip_values, kept_buffers, seed_all
from toolkit.models.activations import exact_activations

BINS = 64
"""Number of bins of each histogram."""


class Histograms(Callback):
    """Sends the gradient of a step, as the optimizer receives it, and the weights after it, one by one."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.every = training.run.cfg.tracking.histogram_steps or 1
        self.is_split = training.run.cfg.parallel.splits
        self.gradients: dict[str, Histogram] = {}

    def before_update(self) -> None:
        """Computes the histograms of the gradient."""
        if (self.training.state.step + 1) % self.every == 0:
            gradients = {name: p.grad for name, p in self._trained().items() if p.grad is not None}
            self.gradients = self._of("gradients", gradients)

    def after_update(self) -> None:
        """Computes the histograms of the weights, and sends both."""
        step = self.training.state.step
        if step % self.every:
            return
        found = self.gradients | self._of("weights", self._trained())
        self.gradients = {}  # a skipped update has none
        run = self.training.run
        on_main(run.accelerator, run.trackers.histograms, found, step)

    def _trained(self) -> dict[str, nn.Parameter]:
        """Returns the trained parameters that this process has, by name, each once."""
        own = self.training.run.strategy.own_parameters().items()
        trained = {id(p): (name, p) for name, p in own if isinstance(p, nn.Parameter) and p.requires_grad}
        return dict(trained.values())

    def _of(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Histogram]:
        """Returns the histograms of tensors, on the main process those of all processes that share a model."""
        if not self.is_split and not self.training.run.accelerator.is_main_process:
            return {}
        own = {f"{kind}/{name}": found for name, each in tensors.items() if (found := histogram(full(each.detach())))}
        if not self.is_split:
            return own
        return {name: found for part in reversed(objects_of_all(own)) for name, found in part.items()}


def histogram(values: Tensor) -> Histogram | None:
    """Returns the histogram of the finite values of a tensor; None if there are none."""
    values = values.flatten() if values.dtype == torch.float64 else values.flatten().float()
    values = values[values.isfinite()]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    if low == high:  # one bin around the only value
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
        counts = [len(values)]
    else:
        counts = torch.histc(values, BINS, low, high).long().tolist()
    edges = np.linspace(low, high, len(counts) + 1).tolist()
    return Histogram(counts, edges, float(values.sum()), float(values.square().sum()))


def first_row(training: Training) -> Batch:
    """Returns a row of the window, as a micro-batch might not fit; without rows, what stands in their place."""
    rows = next((batch for batch in training.window if (batch["row_ids"] >= 0).any()), None)
    return training.window[0] if rows is None else next(training.split(rows, 1))


class CompressionError(Callback):
    """Says how one row's gradient of the first step differs from the exact one.

    Of a split model, it is that of a row of each data rank.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.error = training, math.nan

    def after_gradient(self) -> None:
        """Measures in the first step of a run; the gradient of the step stays as it is."""
        run = self.training.run
        if self.training.state.step > 0:
            return
        row = first_row(self.training)
        if not (row["row_ids"] >= 0).any() and not run.cfg.parallel.splits:
            return
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
        training, run = self.training, self.training.run
        model, batch = training.bare_model, to_device(row, run.accelerator.device)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        seed_all(run.cfg.seed, training.state.step, run.mesh.data_rank)
        with kept_buffers(model), exact_activations() if exact else nullcontext():
            loss = run.task.loss_sum(run.task.forward(model, batch), batch)
            if run.cfg.parallel.splits:  # whose passes use gathered parameters, not those of the list
                kept = [(parameter, parameter.grad) for parameter in trained]
                model.zero_grad()
                loss.backward()
                found = tuple(None if parameter.grad is None else full(parameter.grad) for parameter in trained)
                for parameter, gradient in kept:
                    parameter.grad = gradient
            else:  # not `backward`, which would add to the gradient of the step, and exchange it
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


class ClippedValues(Callback):
    """Limits each element of the gradient of a step, which is exchanged and clipped by its norm already."""

    def __init__(self, training: Training) -> None:
        limit = training.run.cfg.train.max_grad_value
        assert limit is not None
        super().__init__(training)
        self.limit = limit

    def before_update(self) -> None:
        """Limits the gradient; elements do not depend on how it is split over processes."""
        clip_values(self.training.bare_model.parameters(), self.limit)

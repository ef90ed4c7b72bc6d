"""Histograms of weights and gradients for trackers, every `tracking.histogram_steps` steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from toolkit.api.exhibits import Histogram
from toolkit.api.training import Callback, TrainingContext
from toolkit.base.shards import full
from toolkit.distributed.collectives import objects_of_all, on_main

BINS = 64
"""Number of bins of each histogram."""


class Histograms(Callback):
    """Sends the gradient of a step, as the optimizer receives it, and the weights after it.

    Of replicas the main process sends its own. Parameters that are split over processes are gathered one after another.
    """

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.every = context.run.cfg.tracking.histogram_steps or 1
        self.is_split = context.run.cfg.parallel.splits
        self.gradients: dict[str, Histogram] = {}

    def before_update(self) -> None:
        """Computes the histograms of the gradient."""
        if (self.context.state.step + 1) % self.every == 0:
            gradients = {name: p.grad for name, p in self._trained().items() if p.grad is not None}
            self.gradients = self._of("gradients", gradients)

    def after_update(self) -> None:
        """Computes the histograms of the weights, and sends both."""
        step = self.context.state.step
        if step % self.every:
            return
        found = self.gradients | self._of("weights", self._trained())
        self.gradients = {}  # of an update that is left out there are none
        run = self.context.run
        on_main(run.accelerator, run.trackers.histograms, found, step)

    def _trained(self) -> dict[str, nn.Parameter]:
        """Returns the trained parameters that this process has, by name, each once."""
        own = self.context.run.strategy.own_parameters().items()
        trained = {id(p): (name, p) for name, p in own if isinstance(p, nn.Parameter) and p.requires_grad}
        return dict(trained.values())

    def _of(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Histogram]:
        """Returns the histograms of tensors, on the main process those of all processes that share a model."""
        if not self.is_split and not self.context.run.accelerator.is_main_process:
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

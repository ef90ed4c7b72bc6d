"""Schedule-free optimizers train one set of parameters and are judged by their average (arXiv 2405.15682)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from toolkit.api.callback import Callback, TrainingContext
from toolkit.checkpoint import store as checkpoint


class ScheduleFree(Callback):
    """Shows the average wherever parameters are a result; checkpoints hold those that are trained on."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.optimizer: Any = getattr(context.optimizer, "optimizer", context.optimizer)
        self.optimizer.train()

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Puts the average in place of the parameters, and then back their very bits, which the library would not."""
        groups = self.optimizer.param_groups
        if not groups[0]["train_mode"]:
            yield
            return
        kept = [(parameter, parameter.detach().clone()) for group in groups for parameter in group["params"]]
        self.optimizer.eval()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in kept:
                    parameter.copy_(value)
            for group in groups:
                group["train_mode"] = True

    def on_best_loaded(
        self, best: checkpoint.Checkpoint, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
    ) -> None:
        """Brings the optimizer's part of that step's average."""
        checkpoint.load_optimizer_into(best, self.context.optimizer, self.context.bare_model)

    def finish(self) -> None:
        """Makes the average the model."""
        self.optimizer.eval()

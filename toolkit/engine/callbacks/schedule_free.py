"""Schedule-free optimizers, which train one set of parameters and evaluate their average (arXiv 2405.15682)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from toolkit.api.run import Checkpoint
from toolkit.api.training import Callback, TrainingContext
from toolkit.checkpoint import contents


class ScheduleFree(Callback):
    """Uses the average for evaluation and as the final model; checkpoints hold the trained parameters."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.optimizer: Any = getattr(context.optimizer, "optimizer", context.optimizer)
        self.optimizer.train()

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Replaces the parameters by the average inside the block, then restores them bit-exactly."""
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

    def on_best_loaded(self, best: Checkpoint, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Loads the best step's optimizer state, from which its average is computed."""
        context = self.context
        run = context.run
        contents.load_optimizer_into(best, context.optimizer, context.bare_model, run.mesh, run.strategy.outline)

    def finish(self) -> None:
        """Replaces the parameters by the average."""
        self.optimizer.eval()

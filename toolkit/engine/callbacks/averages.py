"""Averaged weights, evaluated and saved: exponential moving averages (Polyak and Juditsky 1992), schedule-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from toolkit.api.run import Checkpoint
from toolkit.api.training import Callback, Training
from toolkit.base.shards import fill, is_split, local
from toolkit.checkpoint import contents


class AveragedWeights(Callback):
    """Keeps an average of every trainable parameter; frozen parameters and buffers are the model's."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.weight = 1.0 - (training.run.cfg.train.ema_decay or 0.0)
        self.averages = {name: parameter.detach().clone() for name, parameter in self._trainable()}

    def _trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return (pair for pair in self.training.bare_model.named_parameters() if pair[1].requires_grad)

    @torch.no_grad()
    def after_update(self) -> None:
        """Updates the averages, unless the fp16 scaler skipped this update."""
        if self.training.run.accelerator.optimizer_step_was_skipped:
            return
        pairs = [
            (self.averages.setdefault(name, parameter.detach().clone()), parameter.detach())
            for name, parameter in self._trainable()
        ]
        if pairs:  # a stage of a pipeline may have only frozen parameters
            averages, parameters = ([local(tensor) for tensor in side] for side in zip(*pairs, strict=True))
            torch._foreach_lerp_(averages, parameters, self.weight)

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Swaps parameters and averages inside the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        parameters = dict(self.training.bare_model.named_parameters())
        for name, average in self.averages.items():
            if is_split(average):  # FSDP2 keeps the memory of its parameters
                own, other = local(parameters[name]), local(average)
                held = own.clone()
                own.copy_(other)
                other.copy_(held)
            else:
                parameters[name].data, self.averages[name] = average, parameters[name].data

    def on_best_loaded(self, best: Checkpoint, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Loads the averages of the best step."""
        self.restore(tensors, values)

    def finish(self) -> None:
        """Replaces the parameters by the averages."""
        parameters = dict(self.training.bare_model.named_parameters())
        with torch.no_grad():
            for name, average in self.averages.items():
                local(parameters[name]).copy_(local(average))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the averages."""
        return dict(self.averages), {}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Loads the averages of a checkpoint."""
        parameters = dict(self.training.bare_model.named_parameters())
        own = {name: value for name, value in tensors.items() if name in parameters}  # others: of other stages
        self.averages = {name: torch.empty_like(parameters[name].detach()) for name in own}
        for name, value in own.items():
            fill(self.averages[name], value)


class ScheduleFree(Callback):
    """Uses the average for evaluation and as the final model; checkpoints hold the trained parameters."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.optimizer: Any = getattr(training.optimizer, "optimizer", training.optimizer)
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
        training = self.training
        run = training.run
        contents.load_optimizer_into(best, training.optimizer, training.bare_model, run.mesh, run.strategy.outline)

    def finish(self) -> None:
        """Replaces the parameters by the average."""
        self.optimizer.eval()

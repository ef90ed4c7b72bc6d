"""Local SGD: processes train on their own for some steps, then average their parameters.

McMahan et al. 2017 (arXiv 1602.05629) and Stich 2019 (arXiv 1805.09767); synchronous steps first: post-local SGD, Lin
et al. 2018 (arXiv 1808.07217); an optimizer over the means: DiLoCo, Douillard et al. 2023 (arXiv 2311.08105).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from toolkit.api.batch import Batch
from toolkit.api.mesh import Mesh
from toolkit.base.errors import RunError
from toolkit.config.sections import Config
from toolkit.distributed.collectives import data_sum
from toolkit.distributed.exchange import Wire, average_gradients
from toolkit.distributed.placement import trained_buffers
from toolkit.distributed.strategies.replicas import Replicas
from toolkit.system.phases import in_phase


class LocalSGD(Replicas):
    """Averages every `train.local_sgd_steps` steps, and before parameters are evaluated, saved or handed out.

    When it averages follows from the step alone. The mean is weighted by the items that each process has trained on
    since the last one, so a process whose windows were empty counts for nothing.
    """

    name = "local_sgd"

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        super().__init__(accelerator, mesh, cfg)
        self.train = cfg.train
        self.wire = Wire()
        self.drift = 0.0
        self._own_items = self._items_since = 0.0
        self._weight = 0.0
        self._parameters_differ = self._moments_differ = False
        self._anchors: dict[str, Tensor] = {}
        self._velocities: dict[str, Tensor] = {}

    @property
    def gradient_is_shared(self) -> bool:
        """Whether the step under way is one of the warm-up, in which gradients are exchanged."""
        return self.replica.state.step < self.train.local_sgd_warmup_steps

    def begin_step(self, own_items: float, items: float) -> float:
        """Returns the factor of this rank's summed losses: in steps of its own only its own items count."""
        self._own_items = own_items
        if self.gradient_is_shared:
            self._weight = self._share(own_items, items)
            return self.mesh.averaging_scale(items)
        for name, parameter in self._trainable().items() if self.train.local_sgd_outer_lr is not None else ():
            if name not in self._anchors:  # also one that is trained from this step on only
                self._anchors[name] = parameter.detach().clone()
                self._velocities[name] = torch.zeros_like(parameter.detach())
        return 1 / own_items if own_items else 0.0

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window, and averages it, with the buffers, in a step of the warm-up."""
        loss_sum = super().window_gradient(window, scale)
        if self.gradient_is_shared:
            average_gradients(self.wire, list(self._trainable().values()), 1 / self.mesh.data_size)
            self.wire.mean(trained_buffers(self.model), self._weight)
        return loss_sum

    def drop_update(self) -> None:
        """Drops this rank's update, with its items."""
        self._own_items = 0.0
        for parameter in self.model.parameters():  # the optimizer skips what has no gradient
            parameter.grad = None

    def after_update(self) -> None:
        """Averages at the end of each period."""
        local_steps = self.replica.state.step - self.train.local_sgd_warmup_steps
        if local_steps <= 0:
            return
        self._items_since += self._own_items
        self._parameters_differ = self._moments_differ = True
        if local_steps % self.train.local_sgd_steps == 0:
            self.average()
            self._outer_step()

    def synchronize(self, for_checkpoint: bool = False) -> None:
        """Averages what was trained since the last time; the outer optimizer waits for the end of its period.

        A checkpoint holds one optimizer, so where moments are not averaged, all ranks take the main process's.
        """
        if self._parameters_differ:
            self.average()
        if for_checkpoint and self._moments_differ:
            moments = self._moments()
            self._require_same_layout(moments)
            self.wire.copy_main(list(moments.values()))
            self._moments_differ = False

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent for the averages, in the whole run."""
        return self.wire.exchanged()

    def log_metrics(self) -> dict[str, float]:
        """Returns what was sent so far, and how far ranks were from their mean when it was last taken."""
        return {
            "local_sgd_bytes_sent": self.wire.bytes_sent,
            "local_sgd_collectives": self.wire.collectives,
            "local_sgd_drift": self.drift,
        }

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the outer optimizer's parameters and momentum, and the counters."""
        tensors = {f"anchor.{name}": value for name, value in self._anchors.items()}
        tensors |= {f"velocity.{name}": value for name, value in self._velocities.items()}
        return tensors, self.log_metrics()

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""
        parameters = self._trainable()
        for prefix, target in (("anchor.", self._anchors), ("velocity.", self._velocities)):
            for name, parameter in parameters.items():
                if prefix + name in tensors:
                    target[name] = torch.empty_like(parameter.detach()).copy_(tensors[prefix + name])
        self.wire.bytes_sent, self.wire.collectives = values["local_sgd_bytes_sent"], values["local_sgd_collectives"]
        self.drift = values["local_sgd_drift"]

    @in_phase("exchange")
    def average(self) -> None:
        """Puts the mean over ranks, weighted by items, in place of parameters, buffers and, if asked for, moments."""
        self.replica.agree_on_lost()
        (items,) = data_sum(self.accelerator, self.mesh, self._items_since)
        weight = self._share(self._items_since, items)
        parameters = list(self._trainable().values())
        distance = self.wire.mean(parameters, weight)
        others = trained_buffers(self.model)
        if self.train.local_sgd_average_moments:
            moments = self._moments()
            self._require_same_layout(moments)
            others += moments.values()
            self._moments_differ = False
        self.wire.mean(others, weight)
        (distance,) = data_sum(self.accelerator, self.mesh, distance)
        size = math.sqrt(sum(float(torch.linalg.vector_norm(p.detach())) ** 2 for p in parameters))
        self.drift = math.sqrt(distance / self.mesh.data_size) / size if size else 0.0
        self._items_since = 0.0
        self._parameters_differ = False

    @torch.no_grad()
    def _outer_step(self) -> None:
        """Takes the way from the last outer step to the mean as a gradient, for SGD with Nesterov momentum."""
        rate, momentum = self.train.local_sgd_outer_lr, self.train.local_sgd_outer_momentum
        if rate is None:
            return
        for name, parameter in self._trainable().items():
            anchor, velocity = self._anchors[name], self._velocities[name]
            gradient = anchor - parameter
            velocity.mul_(momentum).add_(gradient)
            anchor.sub_(gradient.add_(velocity, alpha=momentum), alpha=rate)
            parameter.copy_(anchor)

    def _share(self, own_items: float, items: float) -> float:
        return own_items / items if items else 1 / self.mesh.data_size

    def _trainable(self) -> dict[str, torch.nn.Parameter]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def _moments(self) -> dict[str, Tensor]:
        """Returns the optimizer's tensors by parameter and name, except step counts, which are always equal."""
        state = self.replica.optimizer.state
        return {
            f"{name}.{key}": value
            for name, parameter in self._trainable().items()
            for key, value in state.get(parameter, {}).items()
            if isinstance(value, Tensor) and value.dim() > 0
        }

    def _require_same_layout(self, moments: Mapping[str, Tensor]) -> None:
        """Raises RunError on every rank if ranks hold moments of different parameters; they would wait forever."""
        layout = [(name, tuple(value.shape), str(value.dtype)) for name, value in moments.items()]
        if len(set(gather_object([zlib.crc32(repr(layout).encode())]))) > 1:
            raise RunError(
                "train.strategy local_sgd: some parameters have been trained on one process and never on another (a "
                "model that skips layers at random?), so the optimizer cannot be saved. Set the model's layerdrop "
                "to 0 (model.config_overrides), or train.strategy to sync."
            )

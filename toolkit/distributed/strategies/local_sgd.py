"""Local SGD: processes train on their own for a while, then put the mean of their parameters in place of each.

McMahan et al. 2017 (arXiv 1602.05629) and Stich 2019 (arXiv 1805.09767); synchronous steps first: post-local SGD, Lin
et al. 2018 (arXiv 1808.07217); an optimizer over the means: DiLoCo, Douillard et al. 2023 (arXiv 2311.08105).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from accelerate.utils import gather_object
from torch import Tensor

from toolkit.api.task import Batch
from toolkit.base.errors import RunError
from toolkit.distributed.collectives import all_sum
from toolkit.distributed.flat import Wire
from toolkit.distributed.strategies.sync import EXCHANGED_BYTES, EXCHANGES, Sync
from toolkit.engine.guard import is_lost, non_finite_error, row_numbers

if TYPE_CHECKING:
    from toolkit.engine.session import Session


class LocalSGD(Sync):
    """Averages every `train.local_sgd_steps` steps, and before the parameters are evaluated, saved or handed out.

    When it averages follows from the step alone. The mean is weighted by the items that each process has trained on
    since the last one, so a process whose windows were empty counts for nothing.
    """

    wraps_model: ClassVar[bool] = False

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.train, self.model = session.run.cfg.train, session.bare_model
        self.wire = Wire()
        self.drift = 0.0
        self._own_items = self._items_since = 0.0
        self._weight = 0.0
        self._parameters_differ = self._moments_differ = False
        self._failure: tuple[int, float, list[int]] | None = None
        self._anchors: dict[str, Tensor] = {}
        self._velocities: dict[str, Tensor] = {}

    @property
    def synchronous(self) -> bool:
        """Whether the step under way is one of the warm-up, in which gradients are exchanged."""
        return self.session.state.step < self.train.local_sgd_warmup_steps

    def begin_step(self, own_items: float, items: float) -> float:
        """Returns what this rank multiplies its summed losses by: in its own steps only its own items count."""
        self._own_items = own_items
        if self.synchronous:
            self._weight = self._share(own_items, items)
            return self.session.run.accelerator.num_processes / items if items else 0.0
        for name, parameter in self._trainable().items() if self.train.local_sgd_outer_lr is not None else ():
            if name not in self._anchors:  # also one that is trained from this step on only
                self._anchors[name] = parameter.detach().clone()
                self._velocities[name] = torch.zeros_like(parameter.detach())
        return 1 / own_items if own_items else 0.0

    def exchange(self) -> None:
        """Averages gradients, and with them the buffers, in a step of the warm-up."""
        if not self.synchronous:
            return
        parameters = list(self._trainable().values())
        # A layer that was left out on one rank has no gradient there; one that was left out on all keeps none.
        used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self.wire.mean([*gradients, used], 1 / self.session.run.accelerator.num_processes)
        for parameter, gradient, share in zip(parameters, gradients, used.tolist(), strict=True):
            parameter.grad = gradient if share > 0 else None
        self.wire.mean(self._buffers(), self._weight)

    def check_gradient(self, step: int, grad_norm: float, batches: Sequence[Batch]) -> None:
        """Refuses an update that is not finite; in a step of its own, this rank leaves it out until all can stop."""
        if self.synchronous:
            super().check_gradient(step, grad_norm, batches)
        elif is_lost(self.session.run, grad_norm):
            self.failed = True
            self._failure = (step, grad_norm, row_numbers(self.session.run, batches))
            for parameter in self.model.parameters():  # the optimizer passes over what has no gradient
                parameter.grad = None

    def refuse(self) -> None:
        """Stops all ranks because of one, or some; raises RunError, naming the step and their rows."""
        failures = [failure for failure in gather_object([self._failure]) if failure is not None]
        step, grad_norm, _ = failures[0]
        raise non_finite_error(step, grad_norm, [row for *_, rows in failures for row in rows])

    def after_update(self) -> None:
        """Averages when a period is over."""
        local_steps = self.session.state.step - self.train.local_sgd_warmup_steps
        if local_steps <= 0:
            return
        self._items_since += self._own_items
        self._parameters_differ = self._moments_differ = True
        if local_steps % self.train.local_sgd_steps == 0:
            self._average()
            self._outer_step()

    def before_pause(self) -> None:
        """Averages what was trained since the last time. The outer optimizer waits for the end of its period."""
        if self._parameters_differ:
            self._average()

    def before_save(self) -> None:
        """Makes the moments equal, since a checkpoint holds one optimizer: where they are not averaged, the main's."""
        if self._moments_differ:
            moments = self._moments()
            self._same_layout(moments)
            self.wire.copy_main(list(moments.values()))
            self._moments_differ = False

    def finish(self) -> None:
        """Averages the last steps, if nothing has done so yet."""
        self.before_pause()

    def figures(self) -> dict[str, float]:
        """Returns what was sent so far, and how far ranks were from their mean when it was last taken."""
        return {
            "local_sgd_bytes_sent": self.wire.bytes_sent,
            "local_sgd_collectives": self.wire.collectives,
            "local_sgd_drift": self.drift,
        }

    def result(self) -> dict[str, float]:
        """Returns what this process gave to the averages, in the whole run."""
        return {EXCHANGES: float(self.wire.collectives), EXCHANGED_BYTES: float(self.wire.bytes_sent)}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the outer optimizer's parameters and momentum, and the counters."""
        tensors = {f"anchor.{name}": value for name, value in self._anchors.items()}
        tensors |= {f"velocity.{name}": value for name, value in self._velocities.items()}
        return tensors, self.figures()

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Goes on from there."""
        parameters = self._trainable()
        for prefix, target in (("anchor.", self._anchors), ("velocity.", self._velocities)):
            for name, parameter in parameters.items():
                if prefix + name in tensors:
                    target[name] = torch.empty_like(parameter.detach()).copy_(tensors[prefix + name])
        self.wire.bytes_sent, self.wire.collectives = values["local_sgd_bytes_sent"], values["local_sgd_collectives"]
        self.drift = values["local_sgd_drift"]

    def _average(self) -> None:
        """Puts the mean over ranks, weighted by items, in place of parameters, buffers and, if asked for, moments."""
        accelerator = self.session.run.accelerator
        items, failed = all_sum(accelerator, self._items_since, float(self.failed))
        if failed:
            self.refuse()
        weight = self._share(self._items_since, items)
        parameters = list(self._trainable().values())
        distance = self.wire.mean(parameters, weight)
        others = self._buffers()
        if self.train.local_sgd_average_moments:
            moments = self._moments()
            self._same_layout(moments)
            others += moments.values()
            self._moments_differ = False
        self.wire.mean(others, weight)
        (distance,) = all_sum(accelerator, distance)
        size = math.sqrt(sum(float(torch.linalg.vector_norm(p.detach())) ** 2 for p in parameters))
        self.drift = math.sqrt(distance / accelerator.num_processes) / size if size else 0.0
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
        return own_items / items if items else 1 / self.session.run.accelerator.num_processes

    def _trainable(self) -> dict[str, torch.nn.Parameter]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def _buffers(self) -> list[Tensor]:
        """Returns floating buffers that change in training; those that no checkpoint has are constants."""
        saved = self.model.state_dict().keys()
        return [b for name, b in self.model.named_buffers() if name in saved and b.is_floating_point()]

    def _moments(self) -> dict[str, Tensor]:
        """Returns the optimizer's tensors by parameter and name, but for counts of steps, which are equal anyway."""
        state = self.session.optimizer.state
        return {
            f"{name}.{key}": value
            for name, parameter in self._trainable().items()
            for key, value in state.get(parameter, {}).items()
            if isinstance(value, Tensor) and value.dim() > 0
        }

    def _same_layout(self, moments: Mapping[str, Tensor]) -> None:
        """Raises RunError on every rank when ranks hold moments of other parameters: they would wait forever."""
        layout = [(name, tuple(value.shape), str(value.dtype)) for name, value in moments.items()]
        if len(set(gather_object([zlib.crc32(repr(layout).encode())]))) > 1:
            raise RunError(
                "train.strategy local_sgd: some parameters have been trained on one process and never on another (a "
                "model that leaves out layers at random?), so the optimizer cannot be saved. Set the model's layerdrop "
                "to 0 (model.config_overrides), or train.strategy to sync."
            )

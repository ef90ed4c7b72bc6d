"""ZeRO by DeepSpeed: its engine splits optimizer state, gradients and parameters (Rajbhandari et al. 2020, 1910.02054).

The toolkit drives the engine itself, one window after another: accelerate's integration would ignore it on CPUs,
divide losses by the number of micro-batches and update before the gradient's norm is checked.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from toolkit.api.batch import Batch
from toolkit.api.strategy import Collect, Replica
from toolkit.base.errors import ConfigError
from toolkit.distributed import deepspeed_engine
from toolkit.distributed.exchange import Wire
from toolkit.distributed.modules import generating_together, trained_buffers
from toolkit.distributed.placement import Delivery
from toolkit.distributed.skeleton import Skeleton
from toolkit.distributed.strategies.replicas import Replicas
from toolkit.distributed.window import accumulate
from toolkit.optim.state import optimizer_state, unwrapped

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedModel


class DeepSpeed(Replicas):
    """Synchronous training with DeepSpeed's ZeRO stages 1, 2 and 3."""

    name = "sync"
    wraps_model = False
    hidden_exchange = (
        "DeepSpeed exchanges inside the backward pass and the update, in stage 3 also inside the forward pass, where "
        "that time counts."
    )

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model, which the engine splits once there is an optimizer.

        Raises:
            ConfigError: if parameters are not float32.
        """
        if others := {str(p.dtype) for p in model.parameters() if p.dtype != torch.float32}:
            raise ConfigError([
                f"parallel.backend: received 'deepspeed', which updates parameters in float32, but this model has "
                f"{', '.join(sorted(others))}; set parallel.backend to torch"
            ])  # fmt: skip
        if self.mesh.is_split:  # the others built it without weights
            Delivery(self.accelerator.device)(model.modules())
        self.skeleton = Skeleton(model)
        return super().prepare(model)

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Splits the model and a copy of the optimizer; each step clips the gradient and updates the split one."""
        self.split = copy.copy(optimizer)
        self.split.state = defaultdict(dict)
        self.split.param_groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        self.engine = deepspeed_engine.start_engine(self.own, self.split, self.cfg, self.mesh.size)
        self.wire = Wire()

        def step(optimizer: Optimizer, closure: Any = None) -> None:
            for own, given in zip(self.split.param_groups, optimizer.param_groups, strict=True):
                own.update({key: value for key, value in given.items() if key != "params"})
            self.engine.step()

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def attach(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer, whose state is that of the split one from now on."""
        super().attach(replica)
        unwrapped(replica.optimizer).state = self.split.state

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns this rank's summed loss, a scalar."""
        r, backward = self.replica, partial(self.engine.backward, scale_wrt_gas=False)
        total = accumulate(self.accelerator, r.task, self.engine, window, scale, r.beat, self._exchange, backward)
        self.wire.copy_main(trained_buffers(self.own))
        return total

    @contextmanager
    def _exchange(self, last: bool) -> Iterator[None]:
        self.engine.set_gradient_accumulation_boundary(last)
        yield

    def clip(self, max_norm: float) -> float:
        """Returns the gradient's norm; DeepSpeed clips at the beginning of its step, to `train.max_grad_norm`."""
        return deepspeed_engine.gradient_norm(self.engine)

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the model; in stage 3 every rank must call it equally often, and `generate` waits for all ranks."""
        splits = self.cfg.parallel.zero_stage == 3
        with generating_together(self.model) if splits else nullcontext():
            yield self.model
        if splits:
            self.engine.empty_partition_cache()  # parameters that a forward pass without a backward pass has gathered

    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns complete copies of this process's share of the parameters, and all buffers."""
        return self._complete(lambda number: number % self.mesh.size == self.mesh.rank)

    def complete_model(self, collect: Collect) -> PreTrainedModel:
        """Returns a complete copy of the model on the main process, and ends the engine."""
        tensors = collect(self.own_parameters())
        self.engine.destroy()
        return self.skeleton.filled(tensors) if self.mesh.rank == 0 else self.own

    def _complete(self, keeps: Callable[[int], bool]) -> dict[str, Tensor]:
        """Returns complete copies of some parameters on the CPU, and the model's buffers.

        Args:
            keeps: whether this process keeps the parameter of a number.
        """
        kept: dict[int, Tensor] = {}
        for number, parameter in enumerate(deepspeed_engine.complete_parameters(self.own.parameters())):
            if keeps(number):
                values = parameter.detach().to("cpu", copy=True)
                kept[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
        tensors = self.own.state_dict(keep_vars=True)
        return {
            name: kept.get(id(tensor), tensor)
            for name, tensor in tensors.items()
            if id(tensor) in kept or not isinstance(tensor, nn.Parameter)
        }

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns complete copies of this process's share of the optimizer's state, and its plain values."""
        model = self.skeleton.model
        optimizer, twins = self._on(model)
        for number, (parameter, state) in enumerate(deepspeed_engine.parameter_states(self.engine)):
            owner = number % self.mesh.size == self.mesh.rank
            optimizer.state[twins[parameter]] = {
                key: value.to("cpu" if owner else "meta") if isinstance(value, Tensor) else value
                for key, value in state.items()
            }
        tensors, scalars = optimizer_state(optimizer, model)
        return {key: tensor for key, tensor in tensors.items() if not tensor.is_meta}, scalars

    @contextmanager
    def loading(self, model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[nn.Module, Optimizer]]:
        """Yields a complete model and its optimizer, on the CPU, and splits what was loaded into them."""
        empty = {name: torch.empty(p.shape, dtype=p.dtype) for name, p in self.skeleton.model.named_parameters()}
        complete = Skeleton(self.skeleton.model).filled(empty)
        loaded, twins = self._on(complete)
        yield complete, loaded
        deepspeed_engine.set_parameters(twins)
        own, saved = dict(self.own.named_buffers()), dict(complete.named_buffers())
        for name, buffer in own.items():
            buffer.copy_(saved[name])
        if loaded.state:
            deepspeed_engine.set_states(
                self.engine, {p: loaded.state[twin] for p, twin in twins.items() if twin in loaded.state}
            )
            for own_group, group in zip(unwrapped(optimizer).param_groups, loaded.param_groups, strict=True):
                own_group.update({key: value for key, value in group.items() if key != "params"})

    def _on(self, model: nn.Module) -> tuple[Optimizer, dict[nn.Parameter, nn.Parameter]]:
        """Returns an optimizer without state for a copy of the model, and the copy of each parameter."""
        copies = dict(model.named_parameters())
        twins = {parameter: copies[name] for name, parameter in self.own.named_parameters()}
        outer = unwrapped(self.replica.optimizer)
        optimizer = copy.copy(outer)
        optimizer.state = defaultdict(dict)
        optimizer.param_groups = [
            {**group, "params": [twins[parameter] for parameter in group["params"]]} for group in outer.param_groups
        ]
        return optimizer, twins

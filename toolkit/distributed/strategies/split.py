"""What strategies share that split one model over processes, and the complete tensors of its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Collect, Strategy
from toolkit.base.shards import fill, full, is_split, local
from toolkit.distributed.collectives import objects_of_all
from toolkit.distributed.exchange import Counted, Wire, average_gradients
from toolkit.distributed.placement import (
    Delivery,
    Skeleton,
    keep_stream,
    layers_of,
    norms_of,
    only_products,
    sharing_modules,
)
from toolkit.distributed.strategies.ddp import merged_scalars, share_steps
from toolkit.distributed.tensor.layers import check_equal_gradients, complete_gradients
from toolkit.distributed.tensor.sequence import of_tokens
from toolkit.optim.presets import PRESETS
from toolkit.optim.state import optimizer_state
from toolkit.system.phases import in_phase

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config


def gather_before_step(optimizer: torch.optim.Optimizer) -> None:
    """Makes each step of an optimizer gather one parameter after another, update it and keep this process's part.

    State of a parameter's shape (momentum) is split like the parameter; other state (row and column statistics) is
    complete on every process. Every process computes the same update, so that nothing depends on how parameters are
    split.
    """
    step = optimizer.step

    @torch.no_grad()
    def gathered(optimizer: torch.optim.Optimizer, closure: Any = None) -> None:
        members = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = []
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            for parameter in parameters:
                if parameter.grad is not None:
                    _update(optimizer, step, group, parameter)
            group["params"] = []
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            group["params"] = parameters

    optimizer.step = MethodType(gathered, optimizer)  # type: ignore[method-assign]


def step_by_layout(optimizer: torch.optim.Optimizer) -> None:
    """Makes an optimizer update one layout after another: its kernels take tensors of one device mesh."""
    step = optimizer.step

    def by_layout(optimizer: torch.optim.Optimizer, closure: Any = None) -> None:
        groups = optimizer.param_groups  # as of now: accelerate and a resumed run replace the list
        members = [group["params"] for group in groups]
        layouts = dict.fromkeys(_layout(parameter) for parameters in members for parameter in parameters)
        for layout in layouts:
            for group, parameters in zip(groups, members, strict=True):
                group["params"] = [parameter for parameter in parameters if _layout(parameter) == layout]
            step()
        for group, parameters in zip(groups, members, strict=True):
            group["params"] = parameters

    optimizer.step = MethodType(by_layout, optimizer)  # type: ignore[method-assign]


def _layout(parameter: Any) -> Any:
    return parameter.device_mesh if is_split(parameter) else None


def _update(optimizer: torch.optim.Optimizer, step: Any, group: dict[str, Any], parameter: Tensor) -> None:
    if not is_split(parameter):
        group["params"] = [parameter]
        step()
        return
    state = optimizer.state.pop(parameter, {})
    complete = nn.Parameter(full(parameter.detach()))
    complete.grad = full(parameter.grad)  # type: ignore[arg-type] # checked above
    optimizer.state[complete] = {k: full(v) if isinstance(v, Tensor) else v for k, v in state.items()}
    group["params"] = [complete]
    step()
    group["params"] = []
    fill(parameter, complete)
    optimizer.state[parameter] = {k: _split_like(parameter, v) for k, v in optimizer.state.pop(complete).items()}


def _split_like(parameter: Tensor, value: Any) -> Any:
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    part = torch.empty_like(parameter, dtype=value.dtype)
    fill(part, value)
    return part


class SplitScaler(torch.amp.GradScaler):
    """Scales the losses of fp16: all processes skip an update and lower the scale if a gradient of any is not finite.

    Gradients may be split over any mesh, or be ordinary tensors, which torch's own scalers do not take together.
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for gradient in (local(parameter.grad) for parameter in parameters if parameter.grad is not None):
            found = found_inf.to(gradient.device)  # gradients are on the CPU with `parallel.offload`
            torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, inv_scale.to(gradient.device))
            found_inf.copy_(found)
        dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}


DIMENSIONS = ("pipeline", "replicas", "fsdp", "context", "tensor")
"""Names of the device mesh's dimensions, outermost first, as `toolkit.api.mesh.Mesh` numbers the ranks."""


def device_mesh(mesh: Mesh, device: torch.device) -> DeviceMesh:
    """Returns torch's mesh of the run's processes; may create process groups, so every process must call it."""
    return _device_mesh(dist.group.WORLD, device.type, tuple(mesh.sizes[name] for name in DIMENSIONS))


@cache  # groups keep their threads and connections until they are destroyed, so the runs of a process share them
def _device_mesh(world: dist.ProcessGroup | None, device_type: str, sizes: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(device_type, sizes, mesh_dim_names=DIMENSIONS)


class Split(Strategy):
    """Base of strategies in which no process has a complete model."""

    name = "sync"
    skeleton: Skeleton | None
    """The model without its parameters; on the main process at least."""
    own: PreTrainedModel
    """What this process has of the model."""
    experts: frozenset[nn.Parameter] = frozenset()
    """The parameters that are split over `parallel.expert` processes."""

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        super().__init__(accelerator, mesh, cfg)
        if accelerator.scaler is not None:
            accelerator.scaler = SplitScaler(accelerator.device.type)
        self.devices = device_mesh(mesh, accelerator.device)
        self.wire = Wire(self.devices["replicas"].get_group())
        self.tensor_wire = Wire(self.devices["tensor"].get_group())
        self.traffic = Counted()
        self._reshards = cfg.parallel.reshard_after_forward and cfg.parallel.zero_stage != 2
        self.shares_steps = cfg.parallel.zero_stage == 1 and mesh.replicas > 1

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Gathers parameters for optimizers that need complete ones; separates layouts that kernels cannot mix.

        With ZeRO-1, replicas of the parts of a model share the update of each part.
        """
        elementwise = PRESETS[self.cfg.train.optim].elementwise
        gathers = (self.mesh.fsdp * self.mesh.tensor > 1 or self.experts) and not elementwise
        if gathers:
            gather_before_step(optimizer)
        elif self.mesh.tensor > 1 or self.experts:
            step_by_layout(optimizer)
        if self.shares_steps:
            share_steps(optimizer, self.wire, self.devices["replicas"].get_local_rank(), self.mesh.replicas)
        if gathers or self.shares_steps:
            self.traffic.count_steps_of(optimizer)

    def shard(self, model: nn.Module, deliver: Delivery) -> None:
        """Shards what this process has of a model over `fsdp`, one layer after another."""
        hybrid = self.mesh.replicas > 1
        options: dict[str, Any] = {
            "mesh": self.devices["replicas", "fsdp"] if hybrid else self.devices["fsdp"],
            "reshard_after_forward": self._reshards,
            "offload_policy": CPUOffloadPolicy() if self.cfg.parallel.offload else OffloadPolicy(),
            "ignored_params": set(self.experts),
        }
        precise, layers, groups = {**options}, layers_of(model), sharing_modules(model)
        if self.cfg.train.mixed_precision == "bf16":
            if norms := norms_of(model):
                deliver(norms)
                fully_shard(norms, **precise | {"reshard_after_forward": False})
            keep_stream(model, filter(only_products, layers))
            # Autocast stays, for what must be float32; with it alone, each layer would keep its weights in 16 bits.
            options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        for group in groups:
            deliver(child for module in group for child in module.modules())
            fully_shard(group, **(options if all(map(only_products, group)) else precise))
        for part in (*layers, model):
            deliver(part.modules())
            fully_shard(part, **(options if only_products(part, layers if part is model else ()) else precise))

    def exchange_gradients(self, last: bool) -> None:
        """Makes FSDP2 exchange gradients by `parallel.gradient_sync`, and free what it has gathered for a window.

        Called before each backward pass, given whether it is a layer's last one of the window.
        """
        model: Any = self.model
        if self.mesh.fsdp > 1:
            model.set_requires_gradient_sync(last or self.cfg.parallel.gradient_sync == "micro_batch")
            model.set_requires_all_reduce(last)
            if not self._reshards:
                model.set_reshard_after_backward(last)

    def reshard(self) -> None:
        """Frees what is gathered and has no backward pass after which FSDP2 frees it."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @in_phase("exchange")
    def complete_tensor_gradients(self) -> None:
        """Adds up what the processes of a tensor group have of the gradient of a parameter that is not split."""
        if self.cfg.parallel.sequence:
            average_gradients(self.tensor_wire, [*of_tokens(self.model)], 1.0)
        if self.mesh.tensor > 1:
            complete_gradients(self.model.parameters())
            if self.replica.state.step == 0:
                check_equal_gradients(self.model, self.devices["tensor"])

    @in_phase("exchange")
    def average_over_replicas(self) -> None:
        """Averages the gradient over replicas of the split model, unless FSDP2 has done so."""
        if self.mesh.replicas > 1 and self.mesh.fsdp == 1:
            trained = [p for p in self.model.parameters() if p.requires_grad and p not in self.experts]
            average_gradients(self.wire, trained, 1 / self.mesh.replicas)

    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns the tensors that this process has, split or not."""
        return self.model.state_dict(keep_vars=True)

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the state of this process's optimizer, split like the parameters, and the plain values of all."""
        tensors, scalars = optimizer_state(self.replica.optimizer, self.model)
        several = self.mesh.pipeline > 1 or self.shares_steps
        return tensors, merged_scalars(objects_of_all(scalars)) if several else scalars

    def complete_model(self, collect: Collect) -> PreTrainedModel:
        """Returns a complete copy of the model on the main process, and this process's part on the others."""
        tensors = collect(self.own_parameters())
        return self.skeleton.filled(tensors) if self.skeleton and self.accelerator.is_main_process else self.own

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent, as counted in its first steps."""
        return self.traffic.of_steps(self.replica.state.step)

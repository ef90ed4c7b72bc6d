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

from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Collect, Strategy
from toolkit.base.shards import fill, full, is_split
from toolkit.distributed.exchange import Counted, Wire, average_gradients
from toolkit.distributed.placement import Skeleton
from toolkit.distributed.tensor.layers import check_equal_gradients, complete_gradients
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

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        super().__init__(accelerator, mesh, cfg)
        self.devices = device_mesh(mesh, accelerator.device)
        self.wire = Wire(self.devices["replicas"].get_group())
        self.traffic = Counted()

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Gathers parameters for optimizers that need complete ones; separates layouts that kernels cannot mix."""
        if self.mesh.fsdp > 1 or self.mesh.tensor > 1:
            if not PRESETS[self.cfg.train.optim].elementwise:
                gather_before_step(optimizer)
                self.traffic.count_steps_of(optimizer)
            elif self.mesh.tensor > 1:
                step_by_layout(optimizer)

    @in_phase("exchange")
    def complete_tensor_gradients(self) -> None:
        """Adds up what the processes of a tensor group have of the gradient of a parameter that is not split."""
        if self.mesh.tensor > 1:
            complete_gradients(self.model.parameters())
            if self.replica.state.step == 0:
                check_equal_gradients(self.model, self.devices["tensor"])

    @in_phase("exchange")
    def average_over_replicas(self) -> None:
        """Averages the gradient over replicas of the split model."""
        if self.mesh.replicas > 1:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            average_gradients(self.wire, trained, 1 / self.mesh.replicas)

    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns the tensors that this process has, split or not."""
        return self.model.state_dict(keep_vars=True)

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the state of this process's optimizer, split like the parameters."""
        return optimizer_state(self.replica.optimizer, self.model)

    def complete_model(self, collect: Collect) -> PreTrainedModel:
        """Returns a complete copy of the model on the main process, and this process's part on the others."""
        tensors = collect(self.own_parameters())
        return self.skeleton.filled(tensors) if self.skeleton and self.accelerator.is_main_process else self.own

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent, as counted in its first steps."""
        return self.traffic.of_steps(self.replica.state.step)

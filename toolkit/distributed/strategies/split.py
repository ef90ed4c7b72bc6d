"""What strategies share that split one model over processes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Collect, Replica, Strategy
from toolkit.distributed.exchange import Wire, average_gradients
from toolkit.distributed.skeleton import Skeleton
from toolkit.distributed.tensor.layers import check_equal_gradients, complete_gradients
from toolkit.distributed.traffic import Counted
from toolkit.distributed.window import averaging_scale
from toolkit.optim.gathered import gather_before_step, step_by_layout
from toolkit.optim.presets import PRESETS
from toolkit.optim.state import optimizer_state
from toolkit.system.phases import in_phase

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config

DIMENSIONS = ("pipeline", "replicas", "fsdp", "tensor")
"""Names of the device mesh's dimensions, outermost first, as `toolkit.api.mesh.Mesh` numbers the ranks."""


def device_mesh(mesh: Mesh, device: torch.device) -> DeviceMesh:
    """Returns torch's mesh of the run's processes; may create process groups, so every process must call it."""
    return _device_mesh(dist.group.WORLD, device.type, tuple(mesh.sizes[name] for name in DIMENSIONS))


@cache  # groups keep their threads and connections until they are destroyed, so the runs of a process share them
def _device_mesh(world: dist.ProcessGroup | None, device_type: str, sizes: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(device_type, sizes, mesh_dim_names=DIMENSIONS)


class Split(Strategy):
    """Base of strategies in which no process has a complete model.

    Args:
        accelerator: the run's Accelerator.
        mesh: the run's processes.
        cfg: the run's settings.
    """

    name = "sync"
    wraps_model = False
    skeleton: Skeleton | None
    """The model without its parameters; on the main process at least."""
    own: PreTrainedModel
    """What this process has of the model."""

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        self.accelerator, self.mesh, self.cfg = accelerator, mesh, cfg
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

    def attach(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer."""
        self.replica, self.model = replica, replica.bare_model

    def begin_step(self, own_items: float, items: float) -> float:
        """Returns the factor of summed losses whose gradients are averaged over data ranks."""
        return averaging_scale(self.mesh, items)

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

"""One model split over processes: sharded parameters (FSDP2), split layers (tensor parallel), and replicas of both.

FSDP2 is `torch.distributed.fsdp.fully_shard` (Zhao et al. 2023, arXiv 2304.11277), applied to each layer and to the
model; tensor parallelism splits attention heads and MLPs (Shoeybi et al. 2019, arXiv 1909.08053). The toolkit places
the model itself: accelerate would ignore both on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Replica, Strategy
from toolkit.api.task import Batch
from toolkit.base.shards import full
from toolkit.distributed.clipping import clip_split
from toolkit.distributed.flat import Wire, average_gradients
from toolkit.distributed.modules import layers_of, sharing_modules
from toolkit.distributed.skeleton import Skeleton
from toolkit.distributed.tensor_layers import check_equal_gradients, complete_gradients, split_layers
from toolkit.distributed.window import averaging_scale, micro_batch
from toolkit.optim.gathered import gather_before_step, step_by_layout
from toolkit.optim.presets import PRESETS
from toolkit.optim.state import optimizer_state

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from toolkit.api.strategy import LostGradient
    from toolkit.config.sections import Config

DIMENSIONS = ("pipeline", "replicas", "fsdp", "tensor")
"""Names of the device mesh's dimensions, outermost first, as `toolkit.api.mesh.Mesh` numbers the ranks."""


def device_mesh(mesh: Mesh, device: torch.device) -> DeviceMesh:
    """Returns torch's mesh of the run's processes; creates its process groups, so every process must call it."""
    return init_device_mesh(device.type, tuple(mesh.sizes[name] for name in DIMENSIONS), mesh_dim_names=DIMENSIONS)


class Sharded(Strategy):
    """Synchronous training of one model that is split over processes.

    Args:
        accelerator: the run's Accelerator.
        mesh: the run's processes.
        cfg: the run's settings.
    """

    name = "sync"
    wraps_model = False
    gradient_is_shared = True
    lost: LostGradient | None = None

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        self.accelerator, self.mesh, self.cfg = accelerator, mesh, cfg
        self.devices = device_mesh(mesh, accelerator.device)
        self._reshards = cfg.parallel.reshard_after_forward and cfg.parallel.zero_stage != 2
        self.wire, self.wire_to_all = Wire(self.devices["replicas"].get_group()), Wire()

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Splits the model: layers over `tensor`, then every parameter over `fsdp`."""
        self.skeleton = Skeleton(model) if self.accelerator.is_main_process else None
        model = model.to(self.accelerator.device)
        if self.mesh.tensor > 1:
            split_layers(model, self.devices["tensor"])
        if self.mesh.fsdp > 1:
            self._shard(model)
        self.whole = model
        return model

    def _shard(self, model: nn.Module) -> None:
        hybrid = self.mesh.replicas > 1
        options: dict[str, Any] = {
            "mesh": self.devices["replicas", "fsdp"] if hybrid else self.devices["fsdp"],
            "reshard_after_forward": self._reshards,
            "offload_policy": CPUOffloadPolicy() if self.cfg.parallel.offload else OffloadPolicy(),
        }
        for group in sharing_modules(model):
            fully_shard(group, **options)
        for layer in layers_of(model):
            fully_shard(layer, **options)
        fully_shard(model, **options)

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Gathers each parameter for optimizers that need it complete; separates layouts that kernels cannot mix."""
        if not PRESETS[self.cfg.train.optim].elementwise:
            gather_before_step(optimizer)
        elif self.mesh.tensor > 1:
            step_by_layout(optimizer)

    def attach(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer."""
        self.replica, self.model = replica, replica.bare_model

    def begin_step(self, own_items: float, items: float) -> float:
        """Returns the factor of summed losses whose gradients are averaged over data ranks."""
        return averaging_scale(self.mesh, items)

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns this rank's summed loss, a scalar."""
        r = self.replica
        losses = []
        for number, batch in enumerate(window, start=1):
            if isinstance(self.model, FSDPModule):
                self.model.set_requires_gradient_sync(number == len(window))
                if not self._reshards:
                    self.model.set_reshard_after_backward(number == len(window))
            losses.append(micro_batch(self.accelerator, r.task, self.model, batch, scale).double())
            r.beat()
        if self.mesh.tensor > 1:
            complete_gradients(self.model.parameters())
            if r.state.step == 0:
                check_equal_gradients(self.model, self.devices["tensor"])
        if self.mesh.fsdp == 1 and self.mesh.replicas > 1:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            average_gradients(self.wire, trained, 1 / self.mesh.replicas)
        self.wire_to_all.copy_main(self._buffers())
        return torch.stack(losses).sum()

    def _buffers(self) -> list[Tensor]:
        """Returns the saved floating-point buffers; each data rank changes them with its own rows (batch norm)."""
        saved = self.model.state_dict().keys() if self.mesh.data_size > 1 else ()
        return [b for name, b in self.model.named_buffers() if name in saved and b.is_floating_point()]

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm and returns its norm before clipping."""
        return clip_split(self.model.parameters(), max_norm)

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the split model; every rank must call it equally often, and `generate` waits for all ranks."""
        generate = getattr(self.model, "generate", None)
        if self.mesh.fsdp > 1 and generate is not None:
            self.model.generate = partial(generate, synced_gpus=True)  # type: ignore[assignment]
        try:
            yield self.model
        finally:
            if self.mesh.fsdp > 1 and generate is not None:
                del self.model.generate
            # After a forward pass without a backward pass, the model's own parameters would stay gathered.
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns the split model's tensors."""
        return self.model.state_dict(keep_vars=True)

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the state of the optimizer, split like the parameters."""
        return optimizer_state(self.replica.optimizer, self.model)

    def complete_model(self) -> PreTrainedModel:
        """Returns a complete copy of the model on the main process, and the split model on the others."""
        own, complete = self.own_parameters(), dict[int, Tensor]()
        for tensor in own.values():  # tied weights are gathered once
            if id(tensor) not in complete:
                complete[id(tensor)] = self._complete(tensor)
        tensors = {name: complete[id(tensor)] for name, tensor in own.items()}
        return self.whole if self.skeleton is None else self.skeleton.filled(tensors)

    def _complete(self, tensor: Tensor) -> Tensor:
        """Returns the complete tensor, on the CPU; on other ranks than the main one without its values."""
        whole = full(tensor.detach())
        if not self.accelerator.is_main_process:
            return torch.empty_like(whole, device="meta")
        # What was split unevenly is gathered with padding, which safetensors would refuse to leave out.
        padded = whole.untyped_storage().nbytes() > whole.nbytes
        return whole.clone().cpu() if padded else whole.cpu()

    def exchanged(self) -> dict[str, float]:
        """Returns nothing: torch does not count what FSDP2 and tensor parallelism send."""
        return {}

    def log_metrics(self) -> dict[str, float]:
        """Returns nothing: each step costs the same."""
        return {}

    def state(self) -> None:
        """Returns None: there is no state besides the step."""

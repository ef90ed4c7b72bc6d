"""One model split over processes: sharded parameters (FSDP2), split layers or experts, and replicas of them.

FSDP2 is `torch.distributed.fsdp.fully_shard` (Zhao et al. 2023, arXiv 2304.11277), applied to each layer and to the
model; tensor parallelism splits attention heads and MLPs (Shoeybi et al. 2019, arXiv 1909.08053). The toolkit places
the model itself: accelerate would ignore both on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor, nn

from toolkit.api.batch import Batch
from toolkit.api.mesh import Mesh
from toolkit.base.shards import local
from toolkit.distributed.context import Context
from toolkit.distributed.exchange import Wire, average_gradients, counted
from toolkit.distributed.experts import split_experts
from toolkit.distributed.placement import Delivery, Skeleton, generating_together, trained_buffers
from toolkit.distributed.strategies.split import Split, device_mesh
from toolkit.distributed.tensor.layers import split_layers
from toolkit.distributed.window import accumulate, clip_split
from toolkit.optim.state import unwrapped
from toolkit.system.phases import in_phase

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config


class Sharded(Split):
    """Synchronous training of one model whose parameters are split over processes; arguments as for `Split`."""

    hidden_exchange = (
        "Processes exchange what is split over them inside the forward and the backward pass, where that time counts."
    )

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        super().__init__(accelerator, mesh, cfg)
        self.wire_to_all = Wire()
        self.context: Context | None = None

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Splits the model: layers over `tensor` or experts over `expert`, then other parameters over `fsdp`."""
        self.skeleton = Skeleton(model) if self.accelerator.is_main_process else None
        deliver = Delivery(self.accelerator.device)
        if self.mesh.tensor > 1:
            split_layers(model, self.devices["tensor"], deliver, self.mesh.fsdp, self.cfg.parallel.sequence)
        if self.mesh.expert > 1:
            # Copies of the experts, and the processes that share one, are numbered like replicas and their shards.
            copies = Mesh(self.mesh.data_size // self.mesh.expert, self.mesh.expert, rank=self.mesh.rank)
            devices = device_mesh(copies, self.accelerator.device)
            self.wire_to_copies = Wire(devices["replicas"].get_group())
            self.experts = split_experts(model, devices["fsdp"], deliver)
        if self.mesh.fsdp > 1:
            self.shard(model, deliver)
        else:
            deliver(model.modules())
        if self.mesh.context > 1:
            self.context = Context(model, self.devices["context"])
        self.own = self.model = model
        return model

    @counted
    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns this rank's summed loss, a scalar."""
        context, by_token = self.context, self.replica.task.predicts_tokens
        if context is not None:
            window = [context.own(batch, by_token) for batch in window]
        with nullcontext() if context is None else context.splitting(by_token):
            total = accumulate(self, self.model, window, scale, self._exchange)
        self.complete_tensor_gradients()
        if context is not None:
            context.sum(total, self.model)
        self.average_over_replicas()
        if self.experts:
            self._complete_expert_gradients()
        self.wire_to_all.copy_main(trained_buffers(self.model) if self.mesh.data_size > 1 else [])
        return total

    @in_phase("exchange")
    def _complete_expert_gradients(self) -> None:
        """Adds up the gradients of experts, to which all tokens of a group have contributed, as mean of data ranks."""
        trained = [p for p in self.model.parameters() if p.requires_grad and p in self.experts]
        if self.mesh.data_size > self.mesh.expert:
            average_gradients(self.wire_to_copies, trained, 1 / self.mesh.data_size)
            return
        for gradient in (p.grad for p in trained if p.grad is not None):
            local(gradient).div_(self.mesh.data_size)

    @contextmanager
    def _exchange(self, last: bool) -> Iterator[None]:
        self.exchange_gradients(last)
        yield

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm and returns its norm before clipping."""
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.unscale_(unwrapped(self.replica.optimizer))
        return clip_split(self.model.parameters(), max_norm)

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the split model; every rank must call it equally often, and `generate` waits for all ranks."""
        try:
            with generating_together(self.model) if self.mesh.fsdp * self.mesh.expert > 1 else nullcontext():
                yield self.model
        finally:
            self.reshard()  # there is no backward pass after which that happens

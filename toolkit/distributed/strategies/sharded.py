"""One model split over processes: sharded parameters (FSDP2), split layers (tensor parallel), and replicas of both.

FSDP2 is `torch.distributed.fsdp.fully_shard` (Zhao et al. 2023, arXiv 2304.11277), applied to each layer and to the
model; tensor parallelism splits attention heads and MLPs (Shoeybi et al. 2019, arXiv 1909.08053). The toolkit places
the model itself: accelerate would ignore both on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from toolkit.api.batch import Batch
from toolkit.api.mesh import Mesh
from toolkit.distributed.context import Context
from toolkit.distributed.exchange import Wire, counted
from toolkit.distributed.placement import (
    Delivery,
    Skeleton,
    generating_together,
    keep_stream,
    layers_of,
    norms_of,
    only_products,
    sharing_modules,
    trained_buffers,
)
from toolkit.distributed.strategies.split import Split
from toolkit.distributed.tensor.layers import split_layers
from toolkit.distributed.window import accumulate, clip_split

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
        self._reshards = cfg.parallel.reshard_after_forward and cfg.parallel.zero_stage != 2
        self.wire_to_all = Wire()
        self.context: Context | None = None

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Splits the model: layers over `tensor`, then every parameter over `fsdp`."""
        self.skeleton = Skeleton(model) if self.accelerator.is_main_process else None
        deliver = Delivery(self.accelerator.device)
        if self.mesh.tensor > 1:
            split_layers(model, self.devices["tensor"], deliver, self.mesh.fsdp)
        if self.mesh.fsdp > 1:
            self._shard(model, deliver)
        else:
            deliver(model.modules())
        if self.mesh.context > 1:
            self.context = Context(model, self.devices["context"])
        self.own = self.model = model
        return model

    def _shard(self, model: nn.Module, deliver: Delivery) -> None:
        hybrid = self.mesh.replicas > 1
        options: dict[str, Any] = {
            "mesh": self.devices["replicas", "fsdp"] if hybrid else self.devices["fsdp"],
            "reshard_after_forward": self._reshards,
            "offload_policy": CPUOffloadPolicy() if self.cfg.parallel.offload else OffloadPolicy(),
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

    @counted
    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns this rank's summed loss, a scalar."""
        r, context = self.replica, self.context
        if context is not None:
            window = [context.own(batch, r.task.predicts_tokens) for batch in window]
        with nullcontext() if context is None else context.splitting(r.task.predicts_tokens):
            total = accumulate(self.accelerator, self.mesh, r.task, self.model, window, scale, r.beat, self._exchange)
        self.complete_tensor_gradients()
        if context is not None:
            context.sum(total, self.model)
        if self.mesh.fsdp == 1:  # FSDP2 has averaged over replicas too
            self.average_over_replicas()
        self.wire_to_all.copy_main(trained_buffers(self.model) if self.mesh.data_size > 1 else [])
        return total

    @contextmanager
    def _exchange(self, last: bool) -> Iterator[None]:
        """Makes FSDP2 exchange gradients by `parallel.gradient_sync`, and free what it has gathered for a window."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last or self.cfg.parallel.gradient_sync == "micro_batch")
            self.model.set_requires_all_reduce(last)
            if not self._reshards:
                self.model.set_reshard_after_backward(last)
        yield

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm and returns its norm before clipping."""
        return clip_split(self.model.parameters(), max_norm)

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the split model; every rank must call it equally often, and `generate` waits for all ranks."""
        try:
            with generating_together(self.model) if self.mesh.fsdp > 1 else nullcontext():
                yield self.model
        finally:
            # After a forward pass without a backward pass, the model's own parameters would stay gathered.
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

"""Synchronous training of replicas: every step is one update with the gradient of the complete window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from toolkit.api.strategy import Replica
from toolkit.distributed.comm_hooks import PowerSGD, factor_elements
from toolkit.distributed.exchange import EXCHANGED_BYTES, EXCHANGES, Wire, share_sent
from toolkit.distributed.modules import trained_buffers
from toolkit.distributed.strategies.replicas import Replicas


class DataParallel(Replicas):
    """The default: accelerate's wrapper of the model exchanges gradients in the last backward pass of a window."""

    name = "sync"
    wraps_model = True
    hidden_exchange = (
        "Gradients are exchanged during the backward pass of each step's last micro-batch, where that time counts."
    )
    power: PowerSGD | None = None
    """What PowerSGD keeps, if gradients are exchanged in that way."""

    def attach(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer; sets how gradients are sent (`train.ddp_comm_hook`)."""
        super().attach(replica)
        self._buffers_wire = Wire()
        hook, model = self.cfg.train.ddp_comm_hook, replica.model
        if not isinstance(model, DistributedDataParallel):
            return
        if hook == "fp16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)
        elif hook == "power_sgd":
            self.power = PowerSGD(self.model, self.cfg.train.power_sgd_rank, self.mesh.data_size)
            self.power.register(model)

    def settle(self, for_checkpoint: bool = False) -> None:
        """Gives all processes the main one's buffers, and collects for a checkpoint what each has not sent yet.

        DDP copies buffers before each forward pass only, so after it each process has statistics of its own rows.
        """
        if self.mesh.data_size > 1:
            self._buffers_wire.copy_main(trained_buffers(self.model))
        if for_checkpoint and self.power is not None:
            self.power.gather()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Returns what PowerSGD keeps, of all processes."""
        return None if self.power is None else (self.power.state(), {})

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restores what PowerSGD keeps; a single process, which sends nothing, needs none of it."""
        if self.power is not None:
            self.power.restore(tensors, self.mesh.data_rank)

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent: gradients in buckets, and buffers."""
        model, steps = self.replica.model, self.replica.state.step
        if not isinstance(model, DistributedDataParallel):
            return {}
        facts = model._get_ddp_logging_data()
        buckets = [int(size) for size in str(facts.get("rebuilt_bucket_sizes") or facts["bucket_sizes"]).split(",")]
        buffers = [buffer for buffer in model.modules_buffers if model.broadcast_buffers]
        broadcast = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        gradients, per_bucket = sum(buckets), 1
        if self.cfg.train.ddp_comm_hook == "fp16":
            gradients = sum(2 * parameter.numel() for parameter in trained(model))
        elif self.power is not None:
            gradients = sum(self._factor_bytes(parameter) for parameter in trained(model))
            per_bucket = 3  # at most: what is not compressed, and two factors
        sent = share_sent(self.mesh.data_size) * (2 * gradients + broadcast)
        return {
            EXCHANGES: float((len(buckets) * per_bucket + bool(buffers)) * steps),
            EXCHANGED_BYTES: sent * steps,
        }

    def _factor_bytes(self, parameter: Tensor) -> int:
        elements = factor_elements(parameter.shape, self.cfg.train.power_sgd_rank)
        return (parameter.numel() if elements is None else elements) * parameter.element_size()


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters whose gradients are exchanged."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]

"""Synchronous training of replicas: every step is one update with the gradient of the complete window."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from toolkit.distributed.flat import EXCHANGED_BYTES, EXCHANGES, share_sent
from toolkit.distributed.strategies.replicas import Replicas


class DataParallel(Replicas):
    """The default: accelerate's wrapper of the model exchanges gradients in the last backward pass of a window."""

    name = "sync"
    wraps_model = True
    hidden_exchange = (
        "Gradients are exchanged during the backward pass of each step's last micro-batch, where that time counts."
    )

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent: gradients in buckets, and buffers."""
        model, steps = self.replica.model, self.replica.state.step
        if not isinstance(model, DistributedDataParallel):
            return {}
        facts = model._get_ddp_logging_data()
        buckets = [int(size) for size in str(facts.get("rebuilt_bucket_sizes") or facts["bucket_sizes"]).split(",")]
        buffers = [buffer for buffer in model.modules_buffers if model.broadcast_buffers]
        broadcast = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        sent = share_sent(self.mesh.data_size) * (2 * sum(buckets) + broadcast)
        return {EXCHANGES: float((len(buckets) + bool(buffers)) * steps), EXCHANGED_BYTES: sent * steps}

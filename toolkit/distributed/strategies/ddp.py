"""Synchronous training of replicas: every step is one update with the gradient of the complete window."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from toolkit.distributed.flat import EXCHANGED_BYTES, EXCHANGES
from toolkit.distributed.strategies.replicas import Replicas


class DataParallel(Replicas):
    """The default: accelerate's wrapper of the model exchanges gradients in the last backward pass of a window."""

    name = "sync"
    wraps_model = True

    def exchanged(self) -> dict[str, float]:
        """Returns what this process gave to the exchange: gradients in buckets, and buffers."""
        model, steps = self.replica.model, self.replica.state.step
        if not isinstance(model, DistributedDataParallel):
            return {}
        facts = model._get_ddp_logging_data()
        buckets = str(facts.get("rebuilt_bucket_sizes") or facts["bucket_sizes"]).split(",")
        buffers = [buffer for buffer in model.modules_buffers if model.broadcast_buffers]
        sizes = [*map(int, buckets), *([sum(b.numel() * b.element_size() for b in buffers)] if buffers else [])]
        return {EXCHANGES: float(len(sizes) * steps), EXCHANGED_BYTES: float(sum(sizes) * steps)}

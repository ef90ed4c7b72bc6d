"""Synchronous training of replicas: every step is one update with the gradient of the whole window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from toolkit.api.mesh import Mesh
from toolkit.api.strategy import LostGradient, Replica, Strategy
from toolkit.api.task import Batch
from toolkit.distributed.flat import EXCHANGED_BYTES, EXCHANGES
from toolkit.distributed.window import accumulate, averaging_scale, clip
from toolkit.optim.state import optimizer_state

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config


class DataParallel(Strategy):
    """The default: accelerate's wrapper of the model exchanges gradients in the last backward pass of a window."""

    name = "sync"
    wraps_model = True
    gradient_is_shared = True
    lost: LostGradient | None = None

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        self.accelerator, self.mesh = accelerator, mesh

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model: each process has a complete one."""
        return model

    def attach(self, replica: Replica) -> None:
        """Takes the model."""
        self.replica = replica

    def begin_step(self, own_items: float, items: float) -> float:
        """Returns the factor of summed losses whose gradients the wrapper averages."""
        return averaging_scale(self.mesh, items)

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes and exchanges the gradient of a window; returns this rank's summed loss, a scalar."""
        r = self.replica
        return accumulate(self.accelerator, r.task, r.model, window, scale, r.beat)

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm and returns its norm before that."""
        return clip(self.accelerator, self.replica.model, max_norm)

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the bare model: its wrapper would wait for ranks that have fewer batches."""
        yield self.replica.bare_model

    def full_parameters(self) -> Mapping[str, Tensor]:
        """Returns the model's own tensors."""
        return self.replica.bare_model.state_dict()

    def full_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the optimizer's own state."""
        return optimizer_state(self.replica.optimizer, self.replica.bare_model)

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

    def log_metrics(self) -> dict[str, float]:
        """Returns nothing: each step costs the same."""
        return {}

    def state(self) -> None:
        """Returns None: there is no state besides the step."""

"""What strategies share whose processes each hold a complete model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from toolkit.api.batch import Batch
from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Collect, Replica, Strategy
from toolkit.distributed.window import accumulate, averaging_scale, clip
from toolkit.optim.state import optimizer_state

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config


class Replicas(Strategy):
    """Base of strategies that train complete copies of the model.

    Args:
        accelerator: the run's Accelerator.
        mesh: the run's processes.
        cfg: the run's settings.
    """

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        self.accelerator, self.mesh, self.cfg = accelerator, mesh, cfg

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model unchanged."""
        self.own = model
        return model

    def attach(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer."""
        self.replica, self.model = replica, replica.bare_model

    def begin_step(self, own_items: float, items: float) -> float:
        """Returns the factor of summed losses whose gradients are averaged."""
        return averaging_scale(self.mesh, items)

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns this rank's summed loss, a scalar."""
        r = self.replica
        return accumulate(self.accelerator, r.task, r.model, window, scale, r.beat)

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm and returns its norm before clipping."""
        return clip(self.accelerator, self.replica.model, max_norm)

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the bare model: its wrapper would wait for ranks that have fewer batches."""
        yield self.model

    def complete_model(self, collect: Collect) -> PreTrainedModel:
        """Returns the model."""
        return self.own

    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns the model's own tensors."""
        return self.model.state_dict(keep_vars=True)

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the optimizer's own state."""
        return optimizer_state(self.replica.optimizer, self.model)

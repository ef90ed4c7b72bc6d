"""What strategies share whose processes each hold a complete model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from toolkit.api.batch import Batch
from toolkit.api.strategy import Collect, Replica, Strategy
from toolkit.distributed.window import accumulate, clip
from toolkit.optim.state import optimizer_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Replicas(Strategy):
    """Base of strategies that train complete copies of the model."""

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model unchanged."""
        self.own = self.model = model
        return model

    def bind(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer."""
        super().bind(replica)
        self.parameters = list(replica.model.parameters())  # walking through its modules takes long

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns this rank's summed loss, a scalar."""
        return accumulate(self, self.replica.model, window, scale)

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm and returns its norm before clipping."""
        return clip(self.accelerator, self.parameters, max_norm)

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

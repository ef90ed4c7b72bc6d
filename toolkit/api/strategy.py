"""How the processes of a run share one training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.api.state import TrainState
from toolkit.api.task import Batch, Task

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LostGradient:
    """A gradient that must not become an update.

    Args:
        step: its step, counted from 1.
        norm: its norm, not finite.
        rows: rows of the training file that this process contributed.
    """

    step: int
    norm: float
    rows: Sequence[int]


@dataclass(frozen=True)
class Replica:
    """What a strategy trains on this process.

    Args:
        task: gives the summed loss.
        model: as accelerate has prepared it.
        bare_model: the same without a wrapper.
        optimizer: its optimizer.
        state: what the run has done; changes as it trains.
        split: cuts a micro-batch into parts of at most a number of rows.
        beat: called after each micro-batch, to say that this process is alive.
    """

    task: Task
    model: nn.Module
    bare_model: nn.Module
    optimizer: Optimizer
    state: TrainState
    split: Callable[[Batch, int], Iterator[Batch]]
    beat: Callable[[], None]


class Strategy(Protocol):
    """One object per run. Every method is called on every rank, in this order, and may communicate.

    `prepare`, then `attach`; for each step `begin_step`, `window_gradient`, `clip`, if need be `skip_update`, and
    `after_update`; `settle` before parameters are evaluated or saved, then `full_model` or `full_parameters`.
    """

    name: str
    """As checkpoints and the report call it."""
    wraps_model: bool
    """Whether accelerate wraps the model so that the last backward pass of a window exchanges gradients."""
    lost: LostGradient | None
    """The gradient that this process alone had to leave out; the run stops when all processes can."""

    @property
    def gradient_is_shared(self) -> bool:
        """Whether the gradient of the step under way is the same on every rank, so that all see it is not finite."""

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Places or shards the model; called before the optimizer is built from its parameters."""

    def attach(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer; called once, before anything is restored."""

    def begin_step(self, own_items: float, items: float) -> float:
        """Begins a step.

        Args:
            own_items: items of this rank's part of the window.
            items: items of the whole window.

        Returns:
            The factor of this rank's summed losses, with which gradients add up to that of the step.
        """

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window, complete in each parameter's `grad`, which is None or zero before.

        Args:
            window: this rank's micro-batches, on the CPU.
            scale: what `begin_step` returned.

        Returns:
            This rank's summed loss, a detached scalar.
        """

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm (0: leaves it) and returns its norm before that."""

    def skip_update(self, lost: LostGradient) -> None:
        """Leaves out this rank's update; only called where the gradient is not shared."""

    def after_update(self) -> None:
        """Called after each update has been counted.

        Raises:
            RunError: on every rank, if one of them has lost a gradient.
        """

    def settle(self, for_checkpoint: bool = False) -> None:
        """Makes parameters, and for a checkpoint the optimizer's state too, the same on every rank.

        Raises:
            RunError: on every rank, if that cannot be.
        """

    def full_model(self) -> AbstractContextManager[nn.Module]:
        """Yields the model with all its parameters, to evaluate, to generate with and to save."""

    def full_parameters(self) -> Mapping[str, Tensor]:
        """Returns all parameters and saved buffers by name, complete on the main process, for a checkpoint."""

    def full_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the optimizer's state as `toolkit.optim.state.optimizer_state` does, complete on the main process."""

    def exchanged(self) -> dict[str, float]:
        """Returns what this process has sent in the whole run: `exchange_collectives` and `exchange_bytes`."""

    def log_metrics(self) -> dict[str, float]:
        """Returns values for the next training line."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Returns what a checkpoint must hold besides: tensors, and JSON-able values; None for nothing."""

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""

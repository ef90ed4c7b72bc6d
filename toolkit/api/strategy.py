"""How the processes of a run share one training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from toolkit.api.batch import Batch
from toolkit.api.mesh import Mesh
from toolkit.api.state import TrainState
from toolkit.api.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config

Collect: TypeAlias = "Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]"


class Replica(ABC):
    """A training as strategies see it: the model on this process, and the progress of the run.

    Attributes:
        task: computes the summed loss.
        model: the model as prepared by accelerate.
        bare_model: the same model without its wrapper.
        optimizer: its optimizer.
        state: the progress of the run, updated during training.
    """

    task: Task
    model: nn.Module
    bare_model: nn.Module
    optimizer: Optimizer
    state: TrainState

    @abstractmethod
    def split(self, batch: Batch, size: int) -> Iterator[Batch]:
        """Splits a micro-batch of the current step into parts of at most `size` rows, or tokens with a token budget."""

    @abstractmethod
    def beat(self) -> None:
        """Signals that this process is alive; call it after each micro-batch, and during other long work."""

    @abstractmethod
    def agree_on_lost(self) -> None:
        """Skips the step on all ranks or ends the run, if any rank has dropped an update; every rank must call it.

        Raises:
            RunError: on every rank, if the run may not continue.
        """


class Strategy(ABC):
    """How processes share the training; one object per run.

    Every method is called on every rank, in the same order, and may communicate: `prepare`, `prepare_optimizer`,
    `bind`; for each step `begin_step`, `window_gradient`, `clip`, `drop_update` if necessary, and `after_update`;
    `synchronize` before parameters are evaluated or saved, then `full_model`, `own_parameters` or `own_optimizer`;
    `loading` around what restores a checkpoint; `complete_model` at the end.

    Args:
        accelerator: the run's Accelerator.
        mesh: the run's processes.
        cfg: the run's settings.
    """

    name: ClassVar[str]
    """Its name in checkpoints and the report."""
    wraps_model: ClassVar[bool] = False
    """Whether accelerate wraps the model so that the last backward pass of a window exchanges gradients."""
    hidden_exchange: ClassVar[str] = ""
    """For the report: what is exchanged inside the forward or backward pass, so that its time counts as theirs."""
    outline: PreTrainedModel | None = None
    """The complete model without its weights, if this process holds only some of its parameters."""

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        self.accelerator, self.mesh, self.cfg = accelerator, mesh, cfg

    @property
    def gradient_is_shared(self) -> bool:
        """Whether the gradient of the current step is the same on every rank, so that all see if it is not finite."""
        return True

    @abstractmethod
    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Places or shards the model; called before the optimizer is built from its parameters."""

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Changes what the optimizer's step does; called before its schedule is built."""

    def bind(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer; called once, before anything is restored."""
        self.replica, self.model = replica, replica.bare_model

    def begin_step(self, own_items: float, items: float) -> float:
        """Begins a step.

        Args:
            own_items: items of this rank's part of the window.
            items: items of the window, over all ranks.

        Returns:
            The factor of this rank's summed losses, such that the gradients add up to the gradient of the step; by
            default for gradients that are averaged over data ranks.
        """
        return self.mesh.averaging_scale(items)

    @abstractmethod
    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window into each parameter's `grad`, which must be None or zero before.

        Args:
            window: this rank's micro-batches, on the CPU.
            scale: the factor that `begin_step` returned.

        Returns:
            This rank's summed loss, a detached scalar.
        """

    @abstractmethod
    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm (0 turns clipping off) and returns its norm before clipping."""

    def drop_update(self) -> None:
        """Drops this rank's update, which is not finite; called only if the gradient is not shared."""

    def after_update(self) -> None:
        """Called after each update is counted.

        Raises:
            RunError: on every rank, if one of them has a gradient that is not finite.
        """

    def synchronize(self, for_checkpoint: bool = False) -> None:
        """Makes parameters the same on every rank, and for a checkpoint also the optimizer's state.

        Raises:
            RunError: on every rank, if that is not possible.
        """

    @abstractmethod
    def full_model(self) -> AbstractContextManager[nn.Module]:
        """Yields the model with all its parameters, for evaluation, generation and saving."""

    @abstractmethod
    def complete_model(self, collect: Collect) -> PreTrainedModel:
        """Returns the model to save and to use after training, complete on the main process.

        Args:
            collect: turns the parameters that each process has, split or not, into complete ones on the main process.
        """

    @abstractmethod
    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns the parameters and saved buffers that this process has, by name; they may be split."""

    @abstractmethod
    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the optimizer's state that this process has, as `optimizer_state` does; tensors may be split."""

    @contextmanager
    def loading(self, model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[nn.Module, Optimizer]]:
        """Yields the model and the optimizer to load a checkpoint into; every rank must have loaded it at the end.

        Args:
            model: the model as trained.
            optimizer: its optimizer.
        """
        yield model, optimizer

    def exchanged(self) -> dict[str, float]:
        """Returns what this process has sent during the run: `exchange_collectives` and `exchange_bytes`, if known."""
        return {}

    def log_metrics(self) -> dict[str, float]:
        """Returns values for the next training line."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Returns the strategy's own state for a checkpoint, tensors and JSON-serializable values; None if none."""
        return None

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restores the state that `state` returned."""

"""What may accompany a training step by step, under any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.api.milestones import Milestones
from toolkit.api.run import Checkpoint, Run
from toolkit.api.state import TrainState

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


@dataclass
class TrainingContext:
    """A training as callbacks see it.

    Args:
        run: what is trained.
        model: the model as accelerate has prepared it.
        bare_model: the same without a wrapper.
        optimizer: its optimizer.
        schedule: its learning-rate schedule.
        milestones: when things happen.
        state: what the run has done.
        beat: says that this process is alive, in work that takes long.
        callbacks: by the name in checkpoints, in the order in which they are called.
    """

    run: Run
    model: nn.Module
    bare_model: nn.Module
    optimizer: Optimizer
    schedule: LambdaLR
    milestones: Milestones
    state: TrainState
    beat: Callable[[], None]
    callbacks: dict[str, Callback] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether no step is left."""
        return self.state.ended or self.state.step >= self.milestones.total_steps

    @property
    def epoch(self) -> float:
        """Passes over the training rows so far."""
        return round(self.state.step / self.milestones.steps_per_epoch, 6)

    def end(self) -> None:
        """Ends training before the last planned step."""
        self.state.ended = True

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Holds while parameters are evaluated or saved as a result; see `Callback.as_result`."""
        with ExitStack() as entered:
            for callback in self.callbacks.values():
                entered.enter_context(callback.as_result())
            yield


class Callback(Protocol):
    """Built as `CallbackClass(context)` once model and optimizer are prepared; does nothing at any moment by default.

    Each method is called on every rank, at the same moments in every engine. What a callback keeps is saved and
    restored with the run, so it need not know of engines, ranks or resumes.
    """

    def __init__(self, context: TrainingContext) -> None: ...

    def before_update(self) -> None:
        """Called before each update, once its gradient is exchanged, clipped and known to be finite."""

    def after_update(self) -> None:
        """Called after each update has been counted, before anything is logged, evaluated or saved."""

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Called after validation rows were scored, once per step, with `eval_` metrics."""

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Holds while parameters are evaluated or saved as a result, as opposed to being trained on."""
        yield

    def on_best_loaded(self, best: Checkpoint, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Called when the best step's parameters have replaced the last one's, with the `state` of that step."""

    def finish(self) -> None:
        """Called when nothing is left to train or to save: parameters become the run's result."""

    def final_metrics(self) -> dict[str, float]:
        """Returns values for the report, after the last evaluation; parameters must stay as they are."""
        return {}

    def log_metrics(self) -> dict[str, float]:
        """Returns values for the next training line."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns what a checkpoint must hold: tensors, and values that JSON can hold."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""

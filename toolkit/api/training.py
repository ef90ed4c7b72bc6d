"""A training as callbacks see it, and callbacks, which both engines call at the same moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from toolkit.api.batch import Batch
from toolkit.api.run import Checkpoint, Run
from toolkit.api.state import Milestones, TrainState
from toolkit.base.console import say

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


@dataclass
class TrainingContext:
    """The objects of a training run that callbacks can use.

    Args:
        run: the run.
        model: the model as prepared by accelerate.
        bare_model: the same model without its wrapper.
        optimizer: its optimizer.
        schedule: its learning-rate schedule.
        milestones: when the run logs, evaluates, saves and ends.
        state: the progress of the run.
        beat: signals that this process is alive; call it during long work.
        window: this rank's micro-batches of the current step, on the CPU.
        is_stopping: whether a stop signal has arrived, so that an evaluation is abandoned.
        request_stop: sets the flag that a stop signal sets.
        callbacks: callbacks by their name in checkpoints, in the order of their calls.
    """

    run: Run
    model: nn.Module
    bare_model: nn.Module
    optimizer: Optimizer
    schedule: LambdaLR
    milestones: Milestones
    state: TrainState
    beat: Callable[[], None]
    window: Sequence[Batch] = ()
    is_stopping: Callable[[], bool] = lambda: False
    request_stop: Callable[[], None] = lambda: None
    callbacks: dict[str, Callback] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether no steps are left."""
        return self.state.ended or self.state.step >= self.milestones.total_steps

    @property
    def epoch(self) -> float:
        """Number of epochs so far, with fractions."""
        return round(self.state.step / self.milestones.steps_per_epoch, 6)

    def end(self) -> None:
        """Ends training before the last planned step."""
        self.state.ended = True

    def stop(self, reason: str) -> None:
        """Makes every rank save a checkpoint and stop before the next step, as a stop signal to this one does.

        Args:
            reason: why, for the log.
        """
        say(f"stopping before the next step: {reason}")
        self.request_stop()

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Active while parameters are evaluated or saved as the result; see `Callback.as_result`."""
        with ExitStack() as entered:
            for callback in self.callbacks.values():
                entered.enter_context(callback.as_result())
            yield


class Callback:
    """Base class of callbacks; by default, each method does nothing.

    A callback is built as `CallbackClass(context)` after model and optimizer are prepared. Each method is called on
    every rank, at the same moments in every engine. The state of a callback is saved and restored with the run, so a
    callback does not depend on engines, ranks or resumes.

    An observer is a callback that is made before the run, given to `toolkit.run.run` or `toolkit.engine.fit`: it gets
    its training by `watching`, has no state in checkpoints, and does not change what is trained. Of the hooks it hears
    `before_update` (unless this rank has lost the gradient), `after_step` and `on_evaluated`.
    """

    training: TrainingContext
    """Its training."""

    def __init__(self, context: TrainingContext) -> None:
        self.training = context

    def watching(self, training: TrainingContext) -> Self:
        """Gives an observer its training, before anything is restored; returns the observer."""
        self.training = training
        return self

    def after_gradient(self) -> None:
        """Called after the gradient of a window has been computed and exchanged, before it is clipped."""

    def before_update(self) -> None:
        """Called before each update; the gradient is exchanged, clipped and finite."""

    def after_update(self) -> None:
        """Called after each update is counted, before anything is logged, evaluated or saved."""

    def after_step(self, record: Mapping[str, float]) -> None:
        """Called last in each step; its duration then includes waiting for the device.

        Args:
            record: figures of the step: `epoch`, `loss_sum` of this rank, `num_items`, `seconds`, and those of a
                training line.
        """

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Called after the validation rows are scored, at most once per step, with the `eval_` metrics."""

    def on_evaluated(self, metrics: Mapping[str, float]) -> None:
        """Called like `after_evaluation`, but after a checkpoint of the best step is saved; may end the run."""

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Active while parameters are evaluated or saved as the result; may replace them during that time."""
        yield

    def on_best_loaded(self, best: Checkpoint, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Called after the parameters of the best step are loaded, with the callback's `state` of that step."""

    def finish(self) -> None:
        """Called when training and saving are over: the parameters become the run's result."""

    def final_metrics(self) -> dict[str, float]:
        """Returns values for the report, after the last evaluation; must not change parameters."""
        return {}

    def log_metrics(self) -> dict[str, float]:
        """Returns values for the next training line."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the state for a checkpoint: tensors, and JSON-serializable values."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restores the state that `state` returned."""

    def forget_evaluations(self) -> None:
        """Called after `restore` if the metrics to come cannot be compared with those before."""

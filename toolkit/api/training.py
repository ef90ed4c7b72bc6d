"""A training as callbacks see it, and callbacks, which both engines call at the same moments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from toolkit.api.batch import Batch
from toolkit.api.run import Checkpoint, Run
from toolkit.api.state import Milestones
from toolkit.api.strategy import Replica

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim.lr_scheduler import LambdaLR


class Training(Replica):
    """A training as callbacks see it.

    Attributes:
        run: the run.
        schedule: its learning-rate schedule.
        milestones: when the run logs, evaluates, saves and ends.
        window: this rank's micro-batches of the current step, on the CPU.
        callbacks: callbacks by their name in checkpoints, in the order of their calls.
    """

    run: Run
    schedule: LambdaLR
    milestones: Milestones
    window: Sequence[Batch]
    callbacks: dict[str, Callback]

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

    @abstractmethod
    def stop(self, reason: str) -> None:
        """Makes every rank save a checkpoint and stop before the next step, as a stop signal to this one does.

        Args:
            reason: why, for the log.
        """

    @abstractmethod
    def is_stopping(self) -> bool:
        """Whether a stop signal has arrived, so that an evaluation is abandoned."""

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Active while parameters are evaluated or saved as the result; see `Callback.as_result`."""
        with ExitStack() as entered:
            for callback in self.callbacks.values():
                entered.enter_context(callback.as_result())
            yield


class Callback:
    """Base class of callbacks; by default, each method does nothing.

    A callback is built as `CallbackClass(training)` after model and optimizer are prepared. Each method is called on
    every rank, at the same moments in every engine. The state of a callback is saved and restored with the run, so a
    callback does not depend on engines, ranks or resumes.

    An observer is a callback that is made before the run, given to `toolkit.run.run` or `toolkit.engine.fit`: it gets
    its training by `watching`, has no state in checkpoints, and does not change what is trained. Of the hooks it hears
    `before_update` (unless this rank has lost the gradient), `after_step` and `on_evaluated`.
    """

    training: Training
    """Its training."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def watching(self, training: Training) -> Self:
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

    def final_metrics(self) -> dict[str, Any]:
        """Returns values for the report, or lists by process, after the last evaluation; must not change parameters."""
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

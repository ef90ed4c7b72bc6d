"""Updates that are not finite: whether a run stops at them, skips them, or goes back to a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from toolkit.api.batch import Batch
from toolkit.api.training import Training
from toolkit.base.console import warn
from toolkit.base.errors import RunError
from toolkit.base.shards import local
from toolkit.distributed.collectives import all_sum, objects_of_all

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator
    from torch.optim import Optimizer

SHOWN_ROWS = 20
"""Maximum number of rows listed in the message."""
HINT = (
    "  A smaller train.learning_rate, more train.warmup_steps or train.mixed_precision=no usually help, in a new run "
    "with another output_dir."
)


class NonFiniteGradient(RunError):  # noqa: N818 - the name says it
    """A gradient is not finite, and the run stops before its update; raised on every rank."""

    shared = True


class NonFiniteParameters(RunError):  # noqa: N818 - the name says it
    """Parameters or buffers are not finite, which was found after `step`; raised on every rank."""

    shared = True

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"{what}; nothing was saved. Earlier checkpoints are intact.\n{HINT}")
        self.what, self.step = what, step


class GoBack(RunError):  # noqa: N818 - the run continues
    """The run must go back to its newest checkpoint and skip the window of a step; raised on every rank."""

    shared = True

    def __init__(self, what: str, window: int) -> None:
        super().__init__(what)
        self.what, self.window = what, window


class TooManySkipped(RunError):  # noqa: N818 - the name says it
    """More updates are not finite than a run skips; raised on every rank."""

    shared = True


class LostGradient(NamedTuple):
    """A gradient that is not finite: its step, counted from 1, its norm, and the training rows of this process."""

    step: int
    norm: float
    rows: Sequence[int]


@torch.no_grad()
def require_finite(accelerator: Accelerator, tensors: Mapping[str, Tensor], step: int) -> None:
    """Raises NonFiniteParameters on all ranks, naming the step, if a tensor of any of them is not finite.

    The tensors are those that this rank has, split or not, by name; every rank must call it.
    """
    own = {name: local(tensor) for name, tensor in tensors.items()}
    own = {name: tensor for name, tensor in own.items() if tensor.is_floating_point() and tensor.numel()}
    found = None
    if own and not math.isfinite(float(torch.nn.utils.get_total_norm(list(own.values()), math.inf))):
        found = next(name for name, tensor in own.items() if not bool(torch.isfinite(tensor).all()))
    if names := [name for name in objects_of_all(found) if name is not None]:
        raise NonFiniteParameters(f"step {step}: {names[0]} of the model is not finite", step)


def row_numbers(rows: datasets.Dataset, batches: Sequence[Batch]) -> list[int]:
    """Returns the numbers in the training file of the rows of micro-batches."""
    return [rows[int(row)]["number"] for batch in batches for row in batch["row_ids"] if row >= 0]


class UpdateGuard:
    """Checks each update before it is applied; `train.non_finite` says what happens to a bad one."""

    def __init__(self, training: Training, join: Callable[[], None]) -> None:
        self._training, self._run, self._join = training, training.run, join
        self._mode = training.run.cfg.train.non_finite
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self.skips = False
        """Whether all ranks skip the update of the current step."""
        self.lost: LostGradient | None = None
        """The gradient that only this rank has dropped, until all ranks agree on it."""
        _make_skippable(training.optimizer, lambda: self.skips)

    def begin(self) -> None:
        """Begins a step."""
        self.skips = False
        if self._mode != "stop":  # a skipped window must not change running statistics either
            self._buffers = [(buffer, buffer.clone()) for buffer in self._training.bare_model.buffers()]

    def check(self, grad_norm: float) -> None:
        """Decides about an update by the norm of the exchanged gradient; raises why the run ends or goes back."""
        state = self._training.state
        self.skips = self._mode != "stop" and state.step + 1 in state.left_out
        if self._is_lost(grad_norm) and not self.skips:
            self._lose(self._gradient(state.step + 1, grad_norm))
        if self.skips:
            for buffer, value in self._buffers:
                buffer.copy_(value)

    def _is_lost(self, grad_norm: float) -> bool:
        scaler = self._run.accelerator.scaler
        # fp16: the scaler skips this update and lowers the scale; the run stops only if the scale cannot be lowered.
        return not math.isfinite(grad_norm) and (scaler is None or scaler.get_scale() <= 1)

    def _gradient(self, step: int, norm: float = math.nan) -> LostGradient:
        return LostGradient(step, norm, row_numbers(self._run.data.train, self._training.window))

    def _lose(self, lost: LostGradient) -> None:
        run = self._run
        if not run.strategy.gradient_is_shared:
            self.lost = lost
            run.strategy.drop_update()
            return
        if self._mode == "rollback":
            self._join()
            require_finite(run.accelerator, run.strategy.own_parameters(), self._training.state.step)
        what = self._skip(lost)
        if self._mode == "rollback":
            raise GoBack(what, lost.step)
        self.skips = True

    def agree_if(self, any_lost: float) -> None:
        """Skips the last step on all ranks, or ends the run, if any rank has dropped its update."""
        if any_lost:
            self._skip(self.lost)
            self.lost = None

    def agree(self) -> None:
        """Counts the ranks that have dropped their update, then as `agree_if`; every rank must call it."""
        self.agree_if(*all_sum(self._run.accelerator, float(self.lost is not None)))

    def check_parameters(self) -> None:
        """Checks the parameters after an update, while it is unknown which update broke them before.

        Raises GoBack if this one does.
        """
        run, step = self._run, self._training.state.step
        if step > run.attempt.suspect_step:
            return
        try:
            require_finite(run.accelerator, run.strategy.own_parameters(), step)
        except NonFiniteParameters as error:
            self._join()
            raise GoBack(self._skip(self._gradient(step), error.what), step) from None

    def _skip(self, lost: LostGradient | None, reason: str = "") -> str:
        """Counts a step as skipped on every rank and returns what was not finite, or raises why the run ends."""
        found = [each for each in objects_of_all(lost) if each is not None]
        numbers = sorted({row for each in found for row in each.rows})
        shown = ", ".join(map(str, numbers[:SHOWN_ROWS])) + (" …" if len(numbers) > SHOWN_ROWS else "")
        rows = f"Rows of this step in the training file: {shown}"
        what = reason or f"step {found[0].step}: the gradient's norm is {found[0].norm}"
        if self._mode == "stop":
            raise NonFiniteGradient(f"{what}; training stopped before this update.\n  {rows}\n{HINT}")
        skipped, limit = self._training.state.left_out, self._run.cfg.train.max_non_finite_steps
        if len(skipped) >= limit:
            raise TooManySkipped(
                f"{what}; training stopped before this update, since {limit} were skipped already "
                f"(train.max_non_finite_steps).\n  {rows}\n{HINT}"
            )
        skipped.append(found[0].step)
        warn(f"{what}; this update is skipped ({len(skipped)} of at most {limit}). {rows}")
        return what

    def metrics(self) -> dict[str, float]:
        """Returns how many steps were skipped so far, for training lines and the report."""
        state = self._training.state
        done = [step for step in state.left_out if step <= state.step]
        return {} if self._mode == "stop" else {"non_finite_steps": float(len(done))}


def _make_skippable(optimizer: Optimizer, skips: Callable[[], bool]) -> None:
    """Makes the step of a prepared optimizer do nothing if an update is skipped, as the fp16 scaler does.

    It goes past accelerate's own step, which looks for a library on the disk in every step.
    """
    prepared: Any = optimizer

    def step_unless_skipped(closure: Any = None) -> None:
        prepared._is_overflow = skips()
        if not prepared._is_overflow:
            prepared.optimizer.step(closure)

    if prepared.scaler is None:  # a scaler skips updates itself
        prepared.step = step_unless_skipped

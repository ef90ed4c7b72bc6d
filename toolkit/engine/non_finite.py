"""Updates that are not finite: whether a run stops at them, leaves them out, or goes back to a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from toolkit.api.strategy import LostGradient
from toolkit.api.training import Training
from toolkit.distributed.non_finite import (
    GoBack,
    NonFiniteParameters,
    is_lost,
    leave_out,
    refuse,
    refuse_non_finite,
    row_numbers,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer


class UpdateGuard:
    """Checks each update of a training before it is applied; `train.non_finite` says what happens to a bad one.

    Args:
        training: the training.
        join: waits until the checkpoint in flight is written; every rank calls it before the run goes back to it.
    """

    def __init__(self, training: Training, join: Callable[[], None]) -> None:
        self._training, self._run, self._join = training, training.run, join
        self._mode = training.run.cfg.train.non_finite
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self.leaves_out = False
        """Whether the update of the current step is left out."""
        if self._mode != "stop":
            _make_skippable(training.optimizer, lambda: self.leaves_out)

    def begin(self) -> None:
        """Begins a step."""
        self.leaves_out = False
        if self._mode != "stop":  # a window that is left out must not change running statistics either
            self._buffers = [(buffer, buffer.clone()) for buffer in self._training.bare_model.buffers()]

    def check(self, grad_norm: float) -> None:
        """Decides about an update.

        Args:
            grad_norm: norm of the exchanged gradient, before clipping.

        Raises:
            RunError: if the update is not finite and the run may not go on, with the step and the rows of its window;
                no parameter has changed. At once if the gradient is shared, otherwise when all ranks can stop.
            GoBack: if the run has to go back to a checkpoint and leave this window out.
            NonFiniteParameters: if it has to go back because an earlier update has broken the parameters.
        """
        run, state = self._run, self._training.state
        step = state.step + 1
        self.leaves_out = self._mode != "stop" and step in state.left_out
        if is_lost(run.accelerator, grad_norm) and not self.leaves_out:
            self._lose(LostGradient(step, grad_norm, row_numbers(run.data.train, self._training.window)))
        if self.leaves_out:
            for buffer, value in self._buffers:
                buffer.copy_(value)

    def _lose(self, lost: LostGradient) -> None:
        run, state = self._run, self._training.state
        if not run.strategy.gradient_is_shared:
            run.strategy.skip_update(lost)
        elif self._mode == "stop":
            refuse(lost)
        elif self._mode == "rollback":
            self._join()
            refuse_non_finite(run.accelerator, run.strategy.own_parameters(), state.step)
            raise GoBack(leave_out(state, run.cfg.train, lost), lost.step)
        else:
            leave_out(state, run.cfg.train, lost)
            self.leaves_out = True

    def check_parameters(self) -> None:
        """Checks the parameters after an update, while it is unknown which update broke them before.

        Raises:
            GoBack: if this one does.
        """
        run, state = self._run, self._training.state
        if state.step > run.retry.suspect_step:
            return
        try:
            refuse_non_finite(run.accelerator, run.strategy.own_parameters(), state.step)
        except NonFiniteParameters as error:
            self._join()
            lost = LostGradient(state.step, math.nan, row_numbers(run.data.train, self._training.window))
            raise GoBack(leave_out(state, run.cfg.train, lost, error.what), state.step) from None

    def metrics(self) -> dict[str, float]:
        """Returns how many steps were left out so far, for training lines and the report."""
        state = self._training.state
        done = [step for step in state.left_out if step <= state.step]
        return {} if self._mode == "stop" else {"non_finite_steps": float(len(done))}


def _make_skippable(optimizer: Optimizer, leaves_out: Callable[[], bool]) -> None:
    """Makes the step of a prepared optimizer do nothing if an update is left out, as the fp16 scaler does."""
    prepared: Any = optimizer
    step = prepared.step

    def step_unless_left_out(closure: Any = None) -> None:
        skipped = leaves_out() and prepared.scaler is None  # the scaler skips it itself, and must be asked
        prepared._is_overflow = skipped
        if not skipped:
            step(closure)

    prepared.step = step_unless_left_out

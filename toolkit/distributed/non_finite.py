"""Detects gradients and parameters that are not finite, and stops every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import torch

from toolkit.api.batch import Batch
from toolkit.api.run import Retry
from toolkit.api.state import TrainState
from toolkit.api.strategy import LostGradient
from toolkit.base.console import warn
from toolkit.base.errors import RunError
from toolkit.base.shards import local

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator

    from toolkit.config.train import TrainConfig

SHOWN_ROWS = 20
"""Maximum number of rows listed in the message."""
HINT = (
    "  A smaller train.learning_rate, more train.warmup_steps or train.mixed_precision=no usually help, in a new run "
    "with another output_dir."
)


def is_lost(accelerator: Accelerator, grad_norm: float) -> bool:
    """Whether a gradient of this norm is not finite, so that its update must be skipped or the run stopped."""
    scaler = accelerator.scaler
    # fp16: the scaler skips this update and lowers the scale; the run stops only if the scale cannot be lowered.
    return not math.isfinite(grad_norm) and (scaler is None or scaler.get_scale() <= 1)


class NonFiniteGradient(RunError):  # noqa: N818 - the name says it
    """A gradient is not finite, and the run stops before its update; raised on every rank."""

    shared = True


class NonFiniteParameters(RunError):  # noqa: N818 - the name says it
    """Parameters or buffers are not finite; raised on every rank.

    Args:
        what: the step, and what is not finite.
        step: the last step before it was found.
    """

    shared = True

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"{what}; nothing was saved. Earlier checkpoints are intact.\n{HINT}")
        self.what, self.step = what, step


class GoBack(RunError):  # noqa: N818 - the run goes on
    """The run must go back to its newest checkpoint and leave out a window; raised on every rank.

    Args:
        what: the step, and what was not finite.
        window: the step whose window is left out.
    """

    shared = True

    def __init__(self, what: str, window: int) -> None:
        super().__init__(what)
        self.what, self.window = what, window


class TooManyLeftOut(RunError):  # noqa: N818 - the name says it
    """More updates are not finite than a run leaves out; raised on every rank."""

    shared = True


@torch.no_grad()
def refuse_non_finite(accelerator: Accelerator, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """Stops all ranks if a parameter or buffer of any of them is not finite; every rank must call it.

    Args:
        accelerator: the run's Accelerator.
        tensors: the tensors that this rank has, split or not, by name.
        step: the step after which they are to be saved.

    Raises:
        NonFiniteParameters: naming the step and such a tensor.
    """
    from accelerate.utils import gather_object

    own = {name: local(tensor) for name, tensor in tensors.items()}
    own = {name: tensor for name, tensor in own.items() if tensor.is_floating_point() and tensor.numel()}
    found = None
    if own and not math.isfinite(float(torch.nn.utils.get_total_norm(list(own.values()), math.inf))):
        found = next(name for name, tensor in own.items() if not bool(torch.isfinite(tensor).all()))
    names = [name for name in gather_object([found]) if name is not None]
    if names:
        raise NonFiniteParameters(f"step {step}: {names[0]} of the model is not finite", step)


def row_numbers(rows: datasets.Dataset, batches: Sequence[Batch]) -> list[int]:
    """Returns the numbers in the training file of the rows of micro-batches.

    Args:
        rows: training features, with the column `number`.
        batches: micro-batches with `row_ids`, `[B]` each.
    """
    return [rows[int(row)]["number"] for batch in batches for row in batch["row_ids"] if row >= 0]


def refuse(lost: LostGradient | None) -> NoReturn:
    """Stops all ranks because the gradient of at least one is not finite; every rank must call it.

    Args:
        lost: this rank's gradient, None if it is finite.

    Raises:
        NonFiniteGradient: naming the step and its rows; always.
    """
    _, what, rows = _found(lost)
    raise NonFiniteGradient(f"{what}; training stopped before this update.\n  {rows}\n{HINT}")


def leave_out(state: TrainState, train: TrainConfig, lost: LostGradient | None, reason: str = "") -> str:
    """Notes that the update of a step is left out, and says so; every rank must call it.

    Args:
        state: the progress of the run.
        train: the settings.
        lost: this rank's gradient, None if it is finite.
        reason: the step, and what was not finite, if it was not the gradient.

    Returns:
        The step, and what was not finite.

    Raises:
        TooManyLeftOut: on every rank, if so.
    """
    step, what, rows = _found(lost)
    what = reason or what
    count, limit = len(state.left_out) + 1, train.max_non_finite_steps
    if count > limit:
        raise TooManyLeftOut(
            f"{what}; training stopped before this update, since {limit} were left out already "
            f"(train.max_non_finite_steps).\n  {rows}\n{HINT}"
        )
    state.left_out.append(step)
    warn(f"{what}; this update is left out ({count} of at most {limit}). {rows}")
    return what


def _found(lost: LostGradient | None) -> tuple[int, str, str]:
    """Returns the step of a lost gradient of any rank, what is wrong with it, and the rows of all such gradients."""
    from accelerate.utils import gather_object

    found = [each for each in gather_object([lost]) if each is not None]
    numbers = sorted({row for each in found for row in each.rows})
    shown = ", ".join(map(str, numbers[:SHOWN_ROWS])) + (" …" if len(numbers) > SHOWN_ROWS else "")
    what = f"step {found[0].step}: the gradient's norm is {found[0].norm}"
    return found[0].step, what, f"Rows of this step in the training file: {shown}"


def after_non_finite(train: TrainConfig, retry: Retry, error: GoBack | NonFiniteParameters) -> Retry:
    """Returns what the run knows when it goes back to a checkpoint.

    Args:
        train: the settings.
        retry: what it knew before.
        error: why it goes back.

    Raises:
        NonFiniteParameters: the error, if the run may not go back.
    """
    # Each window can take two attempts: one to find the update that breaks the parameters, one without it.
    if isinstance(error, NonFiniteParameters):
        if train.non_finite != "rollback" or retry.count >= 2 * train.max_non_finite_steps:
            raise error
        warn(f"{error.what}; the run goes back to its newest checkpoint to find the update that broke it")
        return replace(retry, suspect_step=error.step, count=retry.count + 1)
    warn("the run goes back to its newest checkpoint")
    return Retry((*retry.left_out, error.window), count=retry.count + 1)

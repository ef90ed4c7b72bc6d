"""Trains with a rising learning rate and records the loss of each step; called in separate processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.run import Run
from toolkit.distributed.collectives import data_sum
from toolkit.distributed.non_finite import NonFiniteGradient, NonFiniteParameters
from toolkit.optim.schedules import factor_of, peak_rate
from toolkit.recipe import load_settings, load_task_type

if TYPE_CHECKING:
    from torch import nn

    from toolkit.api.batch import Batch

MEMORY = 0.9
"""Share of the running mean of the losses that a step keeps."""
LEAST_RISE = 0.1
"""The loss has diverged when it is above the first one by what it had fallen, or by this part of it if that is more."""


class _Over(Exception):  # noqa: N818 - not an error
    """The test is over; raised on every rank."""


class Curve:
    """Records the loss after each update, and ends the run once it diverges. See `toolkit.api.run.Observer`.

    Args:
        steps: steps of the test.
    """

    run: Run
    """The run, set before its first step."""

    def __init__(self, steps: int) -> None:
        self.steps, self.ended = steps, "finished"
        self.points: list[tuple[float, float]] = []
        """The rate of each update, and the mean loss per item of the step after it."""
        self._mean, self._lowest = RunningMean(), math.inf
        self._first: float | None = None

    def gradient(self, step: int, model: nn.Module) -> None:
        """Does nothing."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Records a step, whose loss is that of the parameters before its update.

        Raises:
            _Over: on every rank, after the last step, or once the loss has diverged.
        """
        (total,) = data_sum(self.run.accelerator, self.run.mesh, record["loss_sum"])
        loss = total / record["num_items"] if record["num_items"] else math.nan
        if step > 1:
            self.points.append((self._rate(step - 1), loss))
        if self._has_diverged(loss):
            self.ended = "diverged"
        if step == self.steps or self.ended == "diverged":
            raise _Over

    def _rate(self, step: int) -> float:
        train = self.run.cfg.train
        return peak_rate(train) * factor_of(train, self.steps)(step - 1)

    def _has_diverged(self, loss: float) -> bool:
        if math.isnan(loss):  # a window without items
            return False
        mean = self._mean.add(loss)
        self._first = loss if self._first is None else self._first
        self._lowest = min(self._lowest, mean)
        return mean > self._first + max(self._first - self._lowest, LEAST_RISE * abs(self._first))


class RunningMean:
    """A running mean of values, corrected for its start at zero (as Adam's moments are)."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        """Adds a value and returns the mean."""
        self._sum = MEMORY * self._sum + (1 - MEMORY) * value
        self._weight = MEMORY * self._weight + (1 - MEMORY)
        return self._sum / self._weight


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains with a rising rate.

    Args:
        job: `recipe` and `config` (files), `overrides`, and optionally `float64`: whether to compute in float64.

    Returns:
        `curve`: the rate of each update, and the mean loss per item after it; and `ended`: `finished`, `diverged`, or
        `not finite` if a gradient or a parameter was not.
    """
    from toolkit.engine import fit
    from toolkit.run import prepared_run

    task_type = load_task_type(job["recipe"])
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    curve = Curve(cfg.train.max_steps)
    recipe, exact = Path(job["recipe"]), bool(job.get("float64"))
    with prepared_run(cfg, task_type(cfg), recipe, curve, float64=exact) as curve.run:
        try:
            fit(curve.run)
        except _Over:
            pass
        except (NonFiniteGradient, NonFiniteParameters):
            curve.ended = "not finite"
    return {"curve": curve.points, "ended": curve.ended}

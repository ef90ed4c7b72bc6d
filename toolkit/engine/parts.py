"""Splits the micro-batches of a training into parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from toolkit.api.milestones import Milestones
from toolkit.api.random import RowRandom
from toolkit.api.run import Run
from toolkit.api.state import TrainState
from toolkit.api.task import Batch
from toolkit.data.batches import split_batch
from toolkit.data.budget import Budget, training_budget


def splitter(run: Run, state: TrainState, milestones: Milestones) -> Callable[[Batch, int], Iterator[Batch]]:
    """Returns the function that splits a micro-batch of the current step.

    It takes the micro-batch and the largest size of a part: tokens if the run has a token budget, rows otherwise.

    Args:
        run: the run.
        state: its progress.
        milestones: its steps.
    """

    @cache
    def budget() -> Budget | None:
        return training_budget(run.data.train, run.cfg, run.mesh, run.task.modality, run.unpadded)

    def split(batch: Batch, size: int) -> Iterator[Batch]:
        random = RowRandom(run.cfg.seed, state.step // milestones.steps_per_epoch)
        return split_batch(run.data.train, run.task, run.processor, random, batch, size, budget())

    return split

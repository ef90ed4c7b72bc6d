"""How micro-batches of a training are collated, and split into parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from toolkit.api.batch import Batch, Processor
from toolkit.api.random import RowRandom
from toolkit.api.run import Run
from toolkit.api.state import Milestones, TrainState
from toolkit.data.batching.batches import split_batch
from toolkit.data.batching.budget import Budget, padding_to, training_budget
from toolkit.models.unpadded.families import ISLANDS


def packs_tokens(run: Run) -> bool:
    """Returns whether layers and their attention take memory for tokens alone."""
    return run.unpadded and run.model.config.model_type not in ISLANDS


def training_processor(run: Run) -> Processor:
    """Returns the processor that collates training rows (`train.pad_to_multiple_of`)."""
    return padding_to(run.processor, run.cfg.train.pad_to_multiple_of)


def splitter(run: Run, state: TrainState, milestones: Milestones) -> Callable[[Batch, int], Iterator[Batch]]:
    """Returns the function that splits a micro-batch of the current step.

    It takes the micro-batch and the largest size of a part: tokens if the run has a token budget, rows otherwise.

    Args:
        run: the run.
        state: its progress.
        milestones: its steps.
    """
    processor = training_processor(run)

    @cache
    def budget() -> Budget | None:
        return training_budget(run.data.train, run.cfg, run.mesh, run.task.modality, packs_tokens(run))

    def split(batch: Batch, size: int) -> Iterator[Batch]:
        random = RowRandom(run.cfg.seed, state.step // milestones.steps_per_epoch)
        return split_batch(run.data.train, run.task, processor, random, batch, size, budget())

    return split

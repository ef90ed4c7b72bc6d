"""Trains a few steps with one size of the micro-batch and measures them; called in separate processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import looked_up
from toolkit.base.errors import RunError
from toolkit.data.batching.budget import lengths_of
from toolkit.distributed.collectives import data_sum, objects_of_all
from toolkit.distributed.strategies.auto_batch_size import is_out_of_memory
from toolkit.footprint.simulate import Subject, simulate
from toolkit.lab.jobs.training import trained
from toolkit.lab.launch import step_rows
from toolkit.lab.plan.worker import Watch

if TYPE_CHECKING:
    from torch import nn

    from toolkit.api.batch import Batch
    from toolkit.api.run import Run

OUT_OF_MEMORY = "out of memory: "
"""How the error of a trial begins that had too little memory."""


def longest_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains on the longest rows, so that no other step of the run needs more memory.

    Args:
        job: as for `toolkit.lab.jobs.training.trained`.

    Returns:
        `memory`: measured bytes of the rank that needs the most; `footprint`: what is predicted for its largest
        micro-batch on a single device; `step_rows` and `epoch_rows`: rows of a step and of an epoch.

    Raises:
        RunError: if memory does not suffice on any rank; the text begins with `OUT_OF_MEMORY`.
    """
    watch, counted = Watch(), list[int]()

    def changed(run: Run) -> Run:
        counted.append(len(run.data.train))
        return _with_longest_rows(run)

    with _told_of_memory(), trained(job, watch, changed) as (run, result):
        batch = looked_up(watch.largest[run.unpadded])
        footprint = simulate(Subject(run.cfg, run.task, run.model.config, batch, run.accelerator.device))
        ranks = [*zip(objects_of_all(asdict(result.memory)), objects_of_all(asdict(footprint)), strict=True)]
        memory, predicted = max(ranks, key=lambda rank: rank[0]["train_peak"])
        rows = {"step_rows": step_rows(run.cfg, run.accelerator.num_processes), "epoch_rows": counted[0]}
        return {"memory": memory, "footprint": predicted, **rows}


class _Timer:
    """Records the time and the rows of each step. See `toolkit.api.run.Observer`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rows: list[float] = []

    def gradient(self, step: int, model: nn.Module) -> None:
        """Does nothing."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Records a step."""
        self.seconds.append(record["seconds"])
        self.rows.append(float(sum((batch["row_ids"] >= 0).sum() for batch in batches)))


def timed_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains the run's own steps and measures their time.

    Args:
        job: as for `toolkit.lab.jobs.training.trained`.

    Returns:
        `seconds` of each step, and its `rows` over all processes.

    Raises:
        RunError: as for `longest_steps`.
    """
    timer = _Timer()
    with _told_of_memory(), trained(job, timer) as (run, _):
        return {"seconds": timer.seconds, "rows": data_sum(run.accelerator, run.mesh, *timer.rows)}


def _with_longest_rows(run: Run) -> Run:
    """Returns a run whose training rows are only the longest ones: those of one step."""
    features = run.data.train
    order = np.argsort(-lengths_of(features).sum(axis=1), kind="stable")
    rows = order[: step_rows(run.cfg, run.accelerator.num_processes)]
    longest = features.remove_columns("row_id").select(rows).add_column("row_id", range(len(rows)))
    return replace(run, data=replace(run.data, train=longest, kept=None))


@contextmanager
def _told_of_memory() -> Iterator[None]:
    """Turns an error about memory into one that the command knows; the launch ends on all ranks with it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(OUT_OF_MEMORY + str(error).strip().split("\n")[0]) from error

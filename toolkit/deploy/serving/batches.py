"""Which rows of several requests are computed together.

The features of each request are made, numbered and split into batches as if it were alone, so an answer does not depend
on other requests: masks are drawn by row number, packed documents stay in the blocks of their request, and a request
that has the server to itself is computed in exactly the batches of `toolkit predict`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from toolkit.api.batch import EvalData, Predictions
from toolkit.api.random import RowRandom
from toolkit.base.errors import DataError
from toolkit.data.batching.batches import collate
from toolkit.data.batching.budget import lengths_of
from toolkit.data.batching.order import evaluation_batches
from toolkit.data.table import Table
from toolkit.data.tokenise import tokenise
from toolkit.engine.evaluation import Part, predict_batch, scatter

if TYPE_CHECKING:
    from toolkit.deploy.trained import TrainedRun


@dataclass(eq=False)
class Job:
    """A request whose rows are checked.

    Args:
        table: the rows.
        done: set to the records of all rows, or to why there are none; cancelled when nobody waits any more.
        arrived: when it was queued, by `time.monotonic`.
    """

    table: Table
    arrived: float
    done: Future[list[dict[str, Any]]] = field(default_factory=Future)
    data: EvalData | None = None
    lengths: Any = None
    waiting: deque[list[int]] = field(default_factory=deque)
    """Batches of feature rows that are not computed yet."""
    parts: list[Part] = field(default_factory=list)

    def prepare(self, run: TrainedRun) -> None:
        """Makes the features of the rows, and splits them into batches.

        Raises:
            DataError: if the rows have no features.
        """
        rows = self.table.rows
        self.data = EvalData(rows, tokenise(rows, run.task, run.processor, labelled=False), run.processor)
        if not len(self.data.features):
            raise DataError("the rows have nothing to predict")
        self.lengths = lengths_of(self.data.features)
        sizes = run.cfg.eval
        self.waiting.extend(
            evaluation_batches(
                self.lengths, sizes.per_device_eval_batch_size, 0, 1, max_tokens=sizes.max_tokens_per_batch
            )
        )

    @property
    def predictions(self) -> Predictions:
        """The predictions of all feature rows, once none waits."""
        assert self.data is not None
        return scatter(self.parts, len(self.data.features))


Piece = tuple[Job, list[int]]
"""A job, and the numbers of some of its feature rows."""


def next_batch(jobs: deque[Job], run: TrainedRun) -> list[Piece]:
    """Takes the rows to compute next: one batch of the first job and, while there is room, of those behind it.

    Jobs that have been served go to the end, so a request of few rows does not wait for one of many.

    Args:
        jobs: jobs with waiting batches, in order; changed in place.
        run: for the sizes of a batch.
    """
    sizes = run.cfg.eval
    taken: list[Piece] = []
    passed: list[Job] = []
    count, longest = 0, list[int]()
    while jobs and count < sizes.per_device_eval_batch_size:
        job = jobs.popleft()
        rows = job.waiting[0]
        sides = job.lengths[rows].max(axis=0).tolist()
        both = list(map(max, longest, sides)) if longest else sides
        total = count + len(rows)
        tokens = total * sum(both)
        fits = total <= sizes.per_device_eval_batch_size and tokens <= (sizes.max_tokens_per_batch or tokens)
        if taken and not fits:
            passed.append(job)
            continue
        taken.append((job, job.waiting.popleft()))
        count, longest = total, both
    jobs.extendleft(reversed(passed))
    jobs.extend(job for job, _ in taken if job.waiting)
    return taken


def compute(run: TrainedRun, pieces: Sequence[Piece]) -> None:
    """Predicts rows of several jobs in one pass of the model, and adds the predictions to their jobs."""
    features = [row for job, rows in pieces for row in _features(job, rows)]
    batch = collate(features, run.task, run.processor, RowRandom(run.cfg.seed, epoch=-1))
    with torch.no_grad():
        _, parts = predict_batch(run, run.model, batch)
    ((row_ids, arrays),) = parts
    start = 0
    for job, rows in pieces:
        place = slice(start, start + len(rows))
        job.parts.append((row_ids[place], {name: array[place] for name, array in arrays.items()}))
        start += len(rows)


def _features(job: Job, rows: list[int]) -> list[dict[str, Any]]:
    assert job.data is not None
    return job.data.features.__getitems__(rows)

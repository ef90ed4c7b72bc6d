"""The thread that owns the model and the processor, and the batches that it forms of waiting requests."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from toolkit.api.batch import EvalData, Predictions
from toolkit.api.random import RowRandom
from toolkit.base.cli_errors import unexpected
from toolkit.base.console import report_error
from toolkit.base.errors import DataError
from toolkit.base.processes import Thread
from toolkit.data.batching.batches import collate
from toolkit.data.batching.budget import lengths_of
from toolkit.data.batching.order import evaluation_batches
from toolkit.data.table import Table
from toolkit.deploy.serving.requests import Refusal
from toolkit.deploy.trained import TrainedRun
from toolkit.distributed.launch import float32_precision
from toolkit.engine.evaluation import Part, kept_casts, predict_batch, scatter


@dataclass(eq=False)
class Job:
    """A request whose rows are checked; `done` gets the records or an error, and is cancelled if its client is gone."""

    table: Table
    arrived: float
    done: Future[list[dict[str, Any]]] = field(default_factory=Future)
    data: EvalData | None = None
    lengths: Any = None
    waiting: deque[list[int]] = field(default_factory=deque)  # batches of feature rows that are not computed yet
    parts: list[Part] = field(default_factory=list)

    def prepare(self, run: TrainedRun) -> None:
        """Makes the features of the rows, and splits them into batches."""
        self.data = run.preprocessed(self.table.rows, labelled=False)
        if not len(self.data.features):
            raise DataError("the rows have nothing to predict")
        self.lengths = lengths_of(self.data.features)
        most, tokens = run.cfg.eval.per_device_eval_batch_size, run.cfg.eval.max_tokens_per_batch
        self.waiting.extend(evaluation_batches(self.lengths, most, 0, 1, max_tokens=tokens))

    @property
    def predictions(self) -> Predictions:
        """The predictions of all feature rows, once none waits."""
        assert self.data is not None
        return scatter(self.parts, len(self.data.features))


@dataclass(eq=False)
class Call:
    """Work of a request that has batches of its own; it is done between the others."""

    work: Callable[[], None]
    done: Future[None] = field(default_factory=Future)


Work = TypeVar("Work", Job, Call)
Piece = tuple[Job, list[int]]
"""A job, and the numbers of some of its feature rows."""


def next_batch(jobs: deque[Job], run: TrainedRun) -> list[Piece]:
    """Takes the rows to compute next: one batch of the first job and, while there is room, of the next ones.

    Served jobs go to the end of `jobs`, so a request of few rows does not wait for one of many.
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


RECENT = 0.2
"""Weight of the latest batch in the mean time of a row."""
FAILED = "the server could not compute the answer; its log has the reason"


class Worker:
    """Answers jobs in common batches, in its own thread; a batch with room waits `batch_wait` seconds for more."""

    def __init__(self, run: TrainedRun, batch_wait: float) -> None:
        self._run, self._batch_wait = run, batch_wait
        self._queue: queue.Queue[Job | Call | None] = queue.Queue()
        self._jobs: deque[Job] = deque()
        self._thread = Thread(self._work, "model")
        self._ending = False
        self.failure = ""
        """Why nothing more can be computed, if that is so."""
        self.seconds_per_row = 0.0
        """Mean time of the latest rows."""
        self.batches = self.rows = 0
        """Batches and feature rows that were computed."""

    @property
    def is_alive(self) -> bool:
        """Whether jobs are answered."""
        return self._thread.is_alive() and not self.failure

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self, seconds: float) -> None:
        """Ends the thread once all jobs are answered; waits for at most `seconds`."""
        self._queue.put(None)
        self._thread.join(seconds)

    def submit(self, table: Table) -> Job:
        """Queues the rows of a request; rejects them once the worker has failed."""
        return self._queued(Job(table, time.monotonic()))

    def call(self, work: Callable[[], None]) -> Future[None]:
        """Queues work for the thread; rejects it once the worker has failed."""
        return self._queued(Call(work)).done

    def _queued(self, work: Work) -> Work:
        if not self.is_alive:
            raise self._unable()
        self._queue.put(work)
        return work

    def _work(self) -> None:
        run = self._run
        run.model.eval()
        with kept_casts(run), float32_precision(run.cfg.train.tf32):
            while self._collect():
                pieces = next_batch(self._jobs, run)
                self._compute(pieces)
                for job, _ in pieces:
                    if not job.waiting and not job.done.done():
                        self._answer(job)

    def _collect(self) -> bool:
        """Waits until there are jobs and, if a batch has room, briefly for more; returns False at the end."""
        while True:
            room = self._run.cfg.eval.per_device_eval_batch_size - sum(len(job.waiting[0]) for job in self._jobs)
            left = self._batch_wait - (time.monotonic() - self._jobs[0].arrived) if self._jobs else None
            wait = 0.0 if self._ending or room <= 0 else left
            try:
                job = self._queue.get(timeout=wait) if wait is None or wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                self._jobs = deque(each for each in self._jobs if not each.done.done())  # the others have no client
                if self._jobs or self._ending:
                    return bool(self._jobs)
                continue
            if job is None:
                self._ending = True
            elif job.done.done() or self.failure:  # its client is gone, or nothing can be computed
                _reject(job, self._unable())
            else:
                self._accept(job)

    def _accept(self, job: Job | Call) -> None:
        with self._failing([job]):
            if isinstance(job, Job):
                job.prepare(self._run)
                self._jobs.append(job)
            elif job.done.set_running_or_notify_cancel():
                with torch.no_grad():
                    job.work()
                job.done.set_result(None)

    def _compute(self, pieces: Sequence[Piece]) -> None:
        """Computes a batch; if that fails, each part alone, so that one request cannot make others fail."""
        began = time.monotonic()
        if len(pieces) > 1:
            try:
                compute(self._run, pieces)
            except Exception as error:
                if _is_lasting(error):
                    self._fail(error, [job for job, _ in pieces])
                    return
            else:
                self._note(pieces, began)
                return
        for piece in pieces:
            with self._failing([piece[0]]):
                compute(self._run, [piece])
                self._note([piece], began)

    def _note(self, pieces: Sequence[Piece], began: float) -> None:
        count = sum(len(rows) for _, rows in pieces)
        latest = (time.monotonic() - began) / count
        self.seconds_per_row += RECENT * (latest - self.seconds_per_row) if self.rows else latest
        self.batches, self.rows = self.batches + 1, self.rows + count

    def _answer(self, job: Job) -> None:
        with self._failing([job]):
            assert job.data is not None
            records = list(self._run.task.decode(job.predictions, job.data))
            with suppress(InvalidStateError):  # it was cancelled meanwhile
                job.done.set_result(records)

    @contextmanager
    def _failing(self, jobs: Sequence[Job | Call]) -> Iterator[None]:
        """Turns an error into the answer of jobs, and drops them."""
        try:
            yield
        except DataError as error:
            self._drop(jobs, Refusal(422, str(error)))
        except Exception as error:
            if _is_lasting(error):
                self._fail(error, jobs)
                return
            report_error(unexpected(error))
            self._drop(jobs, Refusal(500, FAILED))

    def _fail(self, error: Exception, jobs: Sequence[Job | Call]) -> None:
        """Refuses all jobs from now on."""
        self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
        report_error(unexpected(error))
        self._drop([*jobs, *self._jobs], self._unable())

    def _unable(self) -> Refusal:
        return Refusal(503, f"the server can compute nothing any more ({self.failure or 'its worker has ended'})")

    def _drop(self, jobs: Sequence[Job | Call], refusal: Refusal) -> None:
        for job in jobs:
            _reject(job, refusal)
        self._jobs = deque(job for job in self._jobs if not job.done.done())


def _reject(job: Job | Call, refusal: Refusal) -> None:
    with suppress(InvalidStateError):
        job.done.set_exception(refusal)


def _is_lasting(error: Exception) -> bool:
    """Whether an error of the device makes all further computations fail."""
    return isinstance(error, torch.AcceleratorError)

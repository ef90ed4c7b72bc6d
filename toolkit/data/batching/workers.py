"""Worker processes that load and collate batches: how many, and an end to stopped ones."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.queues import Queue
from typing import Any

import torch
from torch.utils.data import DataLoader

from toolkit.api.batch import Batch
from toolkit.api.task import Task, reads_files
from toolkit.base.cli_errors import unexpected
from toolkit.base.errors import DataError, RunError
from toolkit.base.processes import STOP_SIGNALS
from toolkit.config.train import TrainConfig
from toolkit.system.limits import usable_cores

MOST_WORKERS = 8
"""Largest number of workers that `auto` starts for a process that trains on a GPU."""
PATIENCE = 0.5
"""Part of `train.heartbeat_timeout` for which a batch is waited for while no worker computes; after the whole time,
other processes would end this one, and not name its workers."""
POLLS = 10
"""How often workers are looked at in that time."""
IDLE = 0.01
"""Part of a core that workers which only wait for work use at most."""


def num_workers(train: TrainConfig, task: Task, device: torch.device) -> int:
    """Returns `train.dataloader_num_workers` as a number.

    `auto` starts workers for inputs from files on a GPU only: collating text takes less time than passing the batch
    between processes, and training on a CPU uses its cores itself: a worker makes it slower once files are kept
    decoded (benchmarks/results/media.json).
    """
    if train.dataloader_num_workers != "auto":
        return train.dataloader_num_workers
    least = 1 if train.dataloader_persistent_workers or train.dataloader_prefetch_factor else 0
    if not reads_files(task) or device.type == "cpu":
        return least
    spare = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1
    return max(least, min(spare, MOST_WORKERS))


class WatchedLoader(DataLoader):
    """A data loader that waits for workers that compute, however long they take, but not for stopped ones.

    Args:
        dataset: the rows.
        num_workers: number of workers, or 0.
        collate_fn: collates rows.
        heartbeat_timeout: the setting of `train`, in seconds.
        **settings: further arguments of `DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        num_workers: int,
        collate_fn: Callable[[list[Any]], Any],
        heartbeat_timeout: float,
        **settings: Any,
    ) -> None:
        if num_workers:
            settings |= {"worker_init_fn": _begin, "timeout": PATIENCE * heartbeat_timeout / POLLS}
            collate_fn = _Returning(collate_fn)
        super().__init__(dataset, num_workers=num_workers, collate_fn=collate_fn, **settings)

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        return iterator if self.num_workers == 0 else watched(iterator, self.persistent_workers)

    def end_workers(self) -> None:
        """Ends persistent workers; Python would end them with SIGTERM, which they ignore."""
        if self._iterator is not None:
            _end(self._iterator)
            self._iterator = None


@dataclass(frozen=True)
class _Returning:
    """Calls a function and returns errors about rows, which torch would wrap in the traceback of the worker."""

    function: Callable[[list[Any]], Any]

    def __call__(self, rows: list[Any]) -> Any:
        try:
            return self.function(rows)
        except DataError as error:
            return error


@contextmanager
def ended_workers(loader: WatchedLoader) -> Iterator[None]:
    """Ends persistent workers on exit.

    Raises RunError if a worker was killed during the block; torch interrupts this process wherever it is.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise _killed(str(error).splitlines()[0].partition(" Details are lost")[0].strip()) from error
    finally:
        loader.end_workers()


def _killed(what: str) -> RunError:
    return RunError(
        f"{what.rstrip('.')}. If the machine ran out of memory, lower train.dataloader_num_workers or "
        "train.dataloader_prefetch_factor"
    )


def watched(iterator: Any, persistent: bool) -> Iterator[Batch]:
    """Yields a loader's batches; raises DataError for a row, RunError if a worker was killed or none computes."""
    processes: Sequence[Any] = iterator._workers
    seconds, polls = _seconds(processes), 0
    try:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except (EOFError, ConnectionError, FileNotFoundError) as error:
                # A dying process closes its connections a moment before it is dead.
                if not wait([process.sentinel for process in processes], timeout=1.0):
                    raise
                raise _killed("A data loader worker has ended while it passed on a batch") from error
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
                before, seconds = seconds, _seconds(processes)
                polls = polls + 1 if seconds - before < IDLE * iterator._timeout else 0
                if polls < POLLS:
                    continue
                stalled = _stalled(processes, POLLS * iterator._timeout)
                _end(iterator, useless=True)
                raise stalled from None
            polls = 0
            if isinstance(batch, DataError):
                raise batch
            yield batch
    finally:
        if not persistent:
            _end(iterator)


def _stalled(processes: Sequence[Any], seconds: float) -> RunError:
    """Returns the error for workers of which none computes."""
    states = [f"{process.pid} is {_state(process)}" for process in processes]
    return RunError(
        f"no batch has come from the data loader workers for {seconds:g} s, and none of them computes: "
        f"{', '.join(states)}. Look for what stopped them, or for files that do not answer, and resume the run."
    )


def _seconds(processes: Sequence[Any]) -> float:
    """Returns the time that worker processes have computed."""
    import psutil

    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += sum(psutil.Process(process.pid).cpu_times()[:2])
    return total


def _end(iterator: Any, useless: bool = False) -> None:
    """Ends a loader's workers: kills stopped ones, which ignore all else, and if `useless` all of them."""
    for process in iterator._workers:
        if useless or _state(process) == "stopped":
            if iterator._worker_pids_set:  # otherwise torch would raise an error when they are gone
                torch.utils.data._utils.signal_handling._remove_worker_pids(id(iterator))
                iterator._worker_pids_set = False
            process.kill()
    iterator._shutdown_workers()
    for process in iterator._workers:
        process.kill()
        process.join()


def _state(process: Any) -> str:
    import psutil

    try:
        return psutil.Process(process.pid).status()
    except psutil.NoSuchProcess:
        return "gone"


def _begin(worker: int) -> None:
    """Ignores stop signals, and ends with a message if a batch cannot be passed on.

    Schedulers and terminals send signals to every process, but the rank must finish and save.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Python would print a traceback and drop the batch, for which the rank would wait.
    Queue._on_queue_feeder_error = staticmethod(lambda error, batch: _cannot_pass_on(error))  # type: ignore[attr-defined]
    sys.excepthook = lambda kind, error, trace: _cannot_pass_on(error)  # of the thread that passes on descriptors


def _cannot_pass_on(error: BaseException) -> None:
    print(f"\nA data loader worker cannot pass on a batch: {unexpected(error)}", file=sys.stderr, flush=True)
    os._exit(1)

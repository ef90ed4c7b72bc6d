"""Loader workers: how many there are by themselves, and what is said when they stop, are killed or cannot read."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from rows_task import RowsTask

from toolkit.base.errors import DataError, RunError
from toolkit.config.fields import Column
from toolkit.config.sections import TrainConfig
from toolkit.data.batching import workers
from toolkit.data.batching.workers import WatchedLoader, ended_workers, num_workers

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@dataclass
class Task(RowsTask):
    """A task whose inputs are in files, or not."""

    schema = check_row = None
    files: bool = True
    options: None = None

    @property
    def columns(self):
        return {"image": Column("a file", file=self.files)}

    def decoded(self, row, processor, training):
        """Reads nothing."""

    def compact(self, features, processor, random):
        """Collates nothing."""


@pytest.mark.parametrize(
    ("cores", "processes", "device", "task", "settings", "expected"),
    [
        (8, 1, CPU, Task(), {}, 0),
        (8, 1, GPU, Task(), {}, 7),
        (64, 2, GPU, Task(), {}, 8),
        (8, 4, GPU, Task(), {}, 1),
        (1, 1, GPU, Task(), {}, 0),
        (2, 2, CPU, Task(), {}, 0),
        (8, 1, GPU, Task(files=False), {}, 0),
        (8, 1, GPU, SimpleNamespace(columns={}, options=None), {}, 0),
        (8, 1, CPU, Task(files=False), {"dataloader_persistent_workers": True}, 1),
        (1, 1, CPU, Task(), {"dataloader_prefetch_factor": 3}, 1),
        (8, 1, GPU, Task(), {"dataloader_num_workers": 0}, 0),
        (1, 1, CPU, Task(files=False), {"dataloader_num_workers": 5}, 5),
    ],
)
def test_auto(cores, processes, device, task, settings, expected, monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert num_workers(TrainConfig(**settings), task, device) == expected


def collated(rows: list[int]) -> list[int]:
    if rows == [3]:
        raise DataError("row 3 is gone")
    if rows == [5]:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rows == [6]:
        os.kill(os.getpid(), signal.SIGKILL)
    if rows == [7]:  # computes for longer than workers may be silent
        end = time.process_time() + 1.5
        while time.process_time() < end:
            np.zeros(1000).sum()
    if rows == [8]:
        time.sleep(60)
    if rows == [11]:
        raise FileNotFoundError("no file a.png")
    return [Unsendable(rows[0])] if rows[0] in (9, 10) else rows


class Unsendable:
    """A batch for which shared memory, or a descriptor, is missing when it is passed on."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __reduce__(self) -> str:
        if self.row == 9:
            raise RuntimeError(
                "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
            )
        raise OSError(24, "Too many open files")


def loader(rows: list[int], persistent: bool = False, count: int = 2, timeout: float = 120.0) -> WatchedLoader:
    batches = [[row] for row in rows]
    return WatchedLoader(
        range(12),
        batch_sampler=batches,
        collate_fn=collated,
        num_workers=count,
        heartbeat_timeout=timeout,
        persistent_workers=persistent,
    )


def all_batches(rows: list[int], **settings) -> list[list[int]]:
    source = loader(rows, **settings)
    with ended_workers(source):
        return list(source)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = psutil.Process().children()
    yield
    assert psutil.Process().children() == before


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_come_in_order_and_again(persistent):
    source = loader([0, 1, 2, 4], persistent)
    with ended_workers(source):
        assert list(source) == list(source) == [[0], [1], [2], [4]]
        for batch in source:  # a run that ends early
            assert batch == [0]
            break


@pytest.mark.parametrize("count", [0, 2])
def test_an_error_about_a_row_is_said_without_a_traceback(count):
    with pytest.raises(DataError) as error:
        all_batches([0, 3, 1], count=count)
    assert str(error.value) == "row 3 is gone"


def test_a_file_that_is_missing_in_a_worker_is_that_error():
    with pytest.raises(FileNotFoundError, match=r"a\.png"):
        all_batches([0, 11, 1])


@pytest.mark.parametrize(("row", "state"), [(5, "stopped"), (8, "sleeping")])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_do_nothing_are_named(row, state, persistent):
    begin = time.monotonic()
    with pytest.raises(RunError, match=rf"for 0.5 s, and none of them computes: .*\d+ is {state}"):
        all_batches([0, row, 1], persistent=persistent, timeout=1.0)
    assert time.monotonic() - begin < 5


def test_workers_that_compute_are_waited_for():
    assert all_batches([0, 7, 1], timeout=1.0) == [[0], [7], [1]]


def test_a_worker_that_is_stopped_with_nothing_left_to_do_is_ended():
    source = loader([0, 1], persistent=True)
    with ended_workers(source):
        assert list(source) == [[0], [1]]
        for worker in source._iterator._workers:
            os.kill(worker.pid, signal.SIGSTOP)
            while psutil.Process(worker.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
        begin = time.monotonic()
    assert time.monotonic() - begin < 30


def test_a_worker_that_is_killed_is_named():
    with pytest.raises(RunError, match=r"DataLoader worker \(pid.*lower train.dataloader_num_workers"):
        all_batches([0, 6, 1])


@pytest.mark.parametrize(("row", "cause"), [(9, "shared memory is full"), (10, r"ulimit -n")])
def test_a_batch_that_cannot_be_passed_on_names_its_cause_at_once(row, cause, capfd):
    with pytest.raises(RunError, match="DataLoader worker"):
        all_batches([0, row, 1])
    assert re.search(f"worker cannot pass on a batch: .*{cause}", capfd.readouterr().err, re.DOTALL)


def test_a_worker_that_is_killed_while_it_passes_on_a_batch_is_named():
    death, process = os.pipe()

    class Iterator:
        _workers = (SimpleNamespace(pid=os.getpid(), sentinel=death),)

        def __next__(self):
            threading.Timer(0.1, os.close, [process]).start()  # it closes its connections before it is dead
            raise EOFError  # as multiprocessing does when the other side has gone

    with pytest.raises(RunError, match="has ended while it passed on a batch"):
        next(workers.watched(Iterator(), persistent=True))
    os.close(death)

"""Processes that stop answering: the others name them and end, in time."""

from __future__ import annotations

import shutil
import signal
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from fault_runs import QUICK, RESUME, argv
from faults import Faults, differences
from forked import ForkServer, Started

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

HEARTBEAT_SECONDS = 3
LAYOUTS: dict[str, tuple[str, ...]] = {
    "loop": (),
    "trainer": ("engine=trainer",),
    "sharded": ("parallel.fsdp=2", "checkpoint.format=sharded"),
}
PHASES = {
    "step": ("toolkit.engine.training.Session.window_gradient", 5),
    "evaluation": ("toolkit.engine.evaluation.Evaluator.evaluate", 1),
}
WORKER = ("train.dataloader_num_workers=1", "train.dataloader_prefetch_factor=1", "train.num_train_epochs=50")
CASES = [(layout, phase, rank) for layout in LAYOUTS for phase in PHASES for rank in (0, 1)]


def stopped_in(server: ForkServer, folder: Path, layout: str, phase: str, rank: int) -> Started:
    """Starts two processes, and stops one of them inside a phase."""
    place, call = PHASES[phase]
    slow = ("slow", {"place": place, "seconds": 1.0, "call": call})
    settings = (*LAYOUTS[layout], f"train.heartbeat_timeout={HEARTBEAT_SECONDS}")
    command = argv(folder / "run", *settings)
    started = server.start(command, processes=2, hooks=QUICK, rank_hooks={rank: [slow]})
    assert started.until(lambda: f"in {place}" in started.output()), started.output()
    started.signal(signal.SIGSTOP, [rank])
    return started


def test_a_stopped_rank_is_named_and_the_run_ends_in_time(server, faults: Faults, tmp_path):
    wrong = []
    for number, (layout, phase, rank) in enumerate(faults.sample(CASES, least=2)):
        folder, where = tmp_path / str(number), f"rank {rank} stopped in {phase}, {layout}"
        reference = server.run(argv(tmp_path / layout / "run", *LAYOUTS[layout]), processes=2, hooks=QUICK)
        assert not any(reference.codes) or number, reference.output
        started = stopped_in(server, folder, layout, phase, rank)
        faults.count("stalls")
        began = time.monotonic()
        other = 1 - rank
        ended = started.until(partial(started.poll_rank, other), 60)
        seconds = time.monotonic() - began
        started.kill()
        output = started.wait().output
        found = [] if ended and seconds < HEARTBEAT_SECONDS + 5 else [f"ended after {seconds:.1f} s"]
        found += [] if f"rank {rank}" in output else [f"the rank is not named:\n{output}"]
        found += [f"traceback:\n{output}"] if "Traceback" in output else []
        stacks = folder / "run" / "stacks"
        found += [] if stacks.is_dir() and any(stacks.iterdir()) else ["there are no stacks"]
        shutil.rmtree(stacks, ignore_errors=True)  # which are not part of the result
        again = server.run(argv(folder / "run", *LAYOUTS[layout], RESUME), processes=2, hooks=QUICK)
        found += [again.output] if any(again.codes) else differences(tmp_path / layout / "run", folder / "run")
        wrong += faults.wrong([f"{where}: {each}" for each in found])
    assert not wrong, "\n".join(wrong)


def test_a_stopped_worker_of_a_data_loader_is_found(server, faults: Faults, tmp_path):
    wrong = []
    for engine in faults.sample(("loop", "trainer")):
        settings = (*WORKER, f"engine={engine}", f"train.heartbeat_timeout={HEARTBEAT_SECONDS}")
        started = server.start(argv(tmp_path / engine, *settings), hooks=QUICK)
        metrics = tmp_path / engine / "metrics.jsonl"
        assert started.until(lambda metrics=metrics: metrics.exists() and metrics.stat().st_size), started.output()
        workers = psutil.Process(started.pids[0]).children(recursive=True)
        for worker in workers:
            worker.suspend()
        faults.count("stalls")
        ended = started.wait(60)
        wrong += faults.problems(ended, f"a stopped worker, {engine}", [1])
        if not workers or "worker" not in ended.output:
            wrong += faults.wrong([f"{engine}: not named:\n{ended.output}"])
        for worker in workers:
            if worker.is_running():
                worker.kill()
    assert not wrong, "\n".join(wrong)


def test_a_killed_worker_of_a_data_loader_is_a_message(server, faults: Faults, tmp_path):
    started = server.start(argv(tmp_path / "run", *WORKER), hooks=QUICK)
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert started.until(lambda: metrics.exists() and metrics.stat().st_size), started.output()
    workers = psutil.Process(started.pids[0]).children(recursive=True)
    for worker in workers:
        worker.kill()
    faults.count("stalls")
    ended = started.wait(60)
    assert workers
    assert faults.problems(ended, "a killed worker", [1]) == []

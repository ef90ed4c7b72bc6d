"""Ranks that are stopped or sleep are named, with the stacks of all, and end the run; ranks that work do not."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import failing_rank
import psutil
import pytest
from launching import Process, begin, fail_hung, launch_command
from runs import TINY
from stopping import DROPOUT, LONG, command, start, wait_for_step

from toolkit.base.processes import EXIT_STALLED

pytestmark = pytest.mark.distributed

TIMEOUT = 3.0
HEARTBEAT = f"train.heartbeat_timeout={TIMEOUT}"
MARGIN = 15.0
"""Seconds that a busy machine may take beyond that."""


def arguments(output_dir: Path, *settings: str) -> list[str]:
    return command(output_dir, *settings)[2:]


def launchers(script: list[str]) -> dict[str, list[str]]:
    return {
        "accelerate": launch_command(script, 2),
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *script],
        "toolkit": [sys.executable, "-m", "toolkit.system.launcher", "2", sys.executable, *script],
    }


def run_with(fault: str, rank: int, output_dir: Path, *settings: str, launcher: str = "toolkit") -> tuple[int, str]:
    """Returns the exit code and the output of a run on two processes, of which one has a fault."""
    script = [str(failing_rank.__file__), fault, str(rank), *arguments(output_dir, HEARTBEAT, *settings)]
    log = output_dir.with_name("log")
    return gone(begin(launchers(script)[launcher], log), 300, log), log.read_text()


def gone(process: Process, seconds: float, log: Path) -> int:
    """Waits until a launcher and every process that it started have ended; returns its exit code."""
    family, until = dict[int, psutil.Process](), time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > until:
            fail_hung(process.pid, log)
        family |= {each.pid: each for each in psutil.Process(process.pid).children(recursive=True)}
        time.sleep(0.05)
    _, alive = psutil.wait_procs(family.values(), timeout=max(0.0, until - time.monotonic()))
    assert alive == []
    return process.returncode


def assert_named(log: str, output_dir: Path, rank: int, reason: str) -> None:
    assert f"rank {rank} (process " in log, log
    assert reason in log
    for each, function in ((rank, "failing_rank.py"), (1 - rank, "all_gather")):
        text = (output_dir / "stacks" / f"rank{each}.txt").read_text()
        assert "most recent call first" in text
        assert function in text or each != rank
    assert "Traceback" not in log.split("rank 1 (process")[0]


@pytest.mark.parametrize(
    ("fault", "rank", "reason"),
    [
        ("stop", 1, "is stopped (SIGSTOP), for 3 s"),
        ("stop", 0, "is stopped (SIGSTOP), for 3 s"),
        ("stop_in_evaluation", 1, "is stopped (SIGSTOP), for 3 s"),
        ("sleep", 1, "has not come to a collective in which others wait, and does not compute, for 3 s"),
    ],
)
def test_a_rank_that_stalls_is_named_and_everything_ends(fault, rank, reason, tmp_path):
    run = tmp_path / "run"
    code, log = run_with(fault, rank, run, "eval.eval_steps=4", "train.max_steps=8")
    assert time.time() - float((run / "failed_at").read_text()) < TIMEOUT + 5 + MARGIN
    assert code == EXIT_STALLED
    assert_named(log, run, rank, reason)
    assert "checkpoint.resume=auto" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("stop", "is stopped (SIGSTOP), for 6 s"),
        ("compute_for_ever", "collective in which others waited until that timed out (train.ddp_timeout)"),
    ],
)
def test_a_short_timeout_of_collectives_hides_nobody(fault, reason, tmp_path):
    """Which alone would end the run after 2 s, without a name."""
    run = tmp_path / "run"
    code, log = run_with(fault, 1, run, "train.ddp_timeout=2", "train.heartbeat_timeout=6", "train.max_steps=8")
    assert code == EXIT_STALLED, log
    assert_named(log, run, 1, reason)
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_stopped_worker_that_prepares_rows_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))  # so that there are rows to prepare
    run = tmp_path / "run"
    code, log = run_with("stop_preparation", 0, run, "train.max_steps=2", "data.preprocessing_num_workers=2")
    assert time.time() - float((run / "failed_at").read_text()) < TIMEOUT + 15 + MARGIN
    assert code == 1
    assert "a worker of this run, is stopped (SIGSTOP)" in log
    assert "Lower data.preprocessing_num_workers" in log
    assert "Traceback" not in log


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_other_launchers_end_too(launcher, tmp_path):
    code, log = run_with("stop", 1, tmp_path / "run", "train.max_steps=8", launcher=launcher)
    assert time.time() - float((tmp_path / "run" / "failed_at").read_text()) < TIMEOUT + 5 + MARGIN
    assert code == 1  # the launcher's own
    assert_named(log, tmp_path / "run", 1, "is stopped (SIGSTOP)")


@pytest.mark.parametrize("fault", ["compute", "compute_without_threads"])
def test_ranks_that_work_are_let_alone(fault, tmp_path):
    """What one rank does for all is in test_failures.py."""
    code, log = run_with(fault, 1, tmp_path / "run", "train.max_steps=4", "train.heartbeat_timeout=2")
    assert code == 0, log
    assert "result" in json.loads((tmp_path / "run" / "run.json").read_text())
    assert not (tmp_path / "run" / "stacks").exists()


def test_a_loader_worker_that_is_stopped_is_found(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(run, log, *LONG, HEARTBEAT, "train.dataloader_num_workers=1", "train.num_train_epochs=50")
    wait_for_step(process, run, 3, log)
    (worker,) = psutil.Process(process.pid).children()
    worker.suspend()
    begun = time.monotonic()
    assert gone(process, 60, log) == 1, log.read_text()
    assert time.monotonic() - begun < TIMEOUT + 5 + MARGIN
    # The loader names it if it waits for a batch; the heartbeat, if it waits for the worker to end.
    assert re.search(rf"{worker.pid}.* is stopped", log.read_text()), log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
def test_ranks_that_are_all_stopped_go_on_when_they_are_continued(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    train = [sys.executable, "-m", "toolkit", "train", "reviews", "--config", "smoke", "--processes", "2"]
    settings = [*TINY, *DROPOUT, *LONG, HEARTBEAT, "train.max_steps=30", f"output_dir={run}"]
    process = begin([*train, *settings], log)
    wait_for_step(process, run, 5, log)
    ranks = psutil.Process(process.pid).children()
    for number, seconds in ((signal.SIGSTOP, 2 * TIMEOUT), (signal.SIGCONT, 0)):
        for rank in ranks:
            os.kill(rank.pid, number)
        time.sleep(seconds)
    assert gone(process, 120, log) == 0, log.read_text()

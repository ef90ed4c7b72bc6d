"""Runs in which a process, its launcher or another rank dies."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import failing_rank
import psutil
import pytest
from launching import Process, fork, launch
from runs import ROOT, train
from stopping import DROPOUT, LONG, command, start, wait_for_step

from toolkit.checkpoint.manifest import verify

pytestmark = pytest.mark.distributed


SPLIT = {name: (f"parallel.{name}=2", "checkpoint.format=sharded") for name in ("fsdp", "tensor", "pipeline")}
"""Settings of runs whose model is split over two processes."""


def train_with_fault(output_dir: Path, fault: str, rank: int, *settings: str) -> tuple[str, float]:
    """Returns the output of a run on two processes, one of which fails, and how long it went on after that, in s."""
    given = command(output_dir, *settings)[2:]
    done = launch([Path(failing_rank.__file__), fault, str(rank), *given], 2, check=False)
    after = time.time() - float((output_dir / "failed_at").read_text())
    assert done.returncode == 1
    return done.stdout + done.stderr, after


@pytest.mark.parametrize("strategy", ["sync", pytest.param("local_sgd", marks=pytest.mark.slow)])
def test_an_error_on_one_rank_ends_all_within_15_seconds(tmp_path, strategy):
    output, seconds = train_with_fault(tmp_path / "run", "error", 1, f"train.strategy={strategy}")
    assert seconds < 15 + 1  # and the time to read this
    assert "[rank 1] Traceback" in output
    assert "ValueError: a fault on one rank" in output


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow_work", "slow_tracker"])
def test_what_one_process_does_for_all_may_take_longer_than_collectives(tmp_path, fault):
    """Preparing rows, saving, reporting, and what a tracker does take 4 s each here, on the first process."""
    limits = ("train.ddp_timeout=3", "train.heartbeat_timeout=2")  # 3.5 s for a collective
    more = ("train.max_steps=2", "checkpoint.save_steps=2", "tracking.report_to=[tensorboard]")
    given = command(tmp_path / "run", *limits, *more)[2:]
    fork([Path(failing_rank.__file__), fault, "0", *given], 2)
    assert "result" in json.loads((tmp_path / "run/run.json").read_text())
    assert not (tmp_path / "run/stacks").exists()  # the heartbeat lets it alone


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SPLIT)
def test_the_death_of_one_rank_ends_all_within_15_seconds(tmp_path, strategy):
    output, seconds = train_with_fault(tmp_path / "run", "kill", 1, *SPLIT[strategy])
    assert seconds < 15 + 1
    assert "Signal 9 (SIGKILL)" in output


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_a_sharded_save_leaves_the_checkpoint_before(tmp_path, capsys, rank):
    checkpoints = tmp_path / "run" / "checkpoints"
    settings = (*DROPOUT, "checkpoint.save_steps=1")
    _, seconds = train_with_fault(tmp_path / "run", "kill_in_save", rank, *settings, *SPLIT["fsdp"])
    assert seconds < 15 + 1
    before = checkpoints / f"step-{failing_rank.FAULT_STEP - 1}"
    assert verify(before) == []
    assert not (checkpoints / f"step-{failing_rank.FAULT_STEP}").exists()
    alone = ("train.per_device_train_batch_size=4", "checkpoint.resume=auto")  # the same window on one process
    train("reviews", tmp_path / "run", *settings, *alone, "train.max_steps=5")
    assert f"resuming from {before}" in capsys.readouterr().out
    assert not list(checkpoints.glob(".tmp-*"))


def workers(launcher: Process) -> list[psutil.Process]:
    return psutil.Process(launcher.pid).children(recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_workers_end_with_their_launcher_and_the_run_goes_on_at_once(tmp_path, processes):
    log = tmp_path / "log"
    launcher = start(tmp_path / "run", log, *LONG, processes=processes)
    wait_for_step(launcher, tmp_path / "run", 5, log)
    orphans = workers(launcher)
    assert len(orphans) == processes
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    again = start(tmp_path / "run", log, *LONG, "train.max_steps=40", "checkpoint.resume=auto", processes=processes)
    _, alive = psutil.wait_procs(orphans, timeout=30)
    assert alive == []
    assert again.wait(300) == 0, log.read_text()
    assert "resuming from " in log.read_text()


@pytest.mark.slow
def test_wrong_input_is_said_once_and_first_under_the_launcher(tmp_path):
    config = ["--config", ROOT / "recipes/configs/qa/smoke.yaml", "train.optim=adamw", f"output_dir={tmp_path / 'run'}"]
    done = launch([ROOT / "recipes/qa.py", *config], 2, check=False)
    assert done.returncode == 1  # the launcher's own code for any failure
    errors = done.stderr
    assert errors.count("train.optim: received 'adamw'") == 1
    assert errors.index("train.optim") < errors.index("Traceback")  # the launcher's, which cannot be had away
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [("engine=loop",), SPLIT["fsdp"], ("engine=trainer", *SPLIT["pipeline"])],
    ids=["loop", "fsdp", "pipeline-trainer"],
)
def test_sigterm_to_one_rank_makes_all_save_the_same_step(tmp_path, settings):
    log = tmp_path / "log"
    launcher = start(tmp_path / "run", log, *LONG, "checkpoint.save_steps=null", *settings, processes=2)
    wait_for_step(launcher, tmp_path / "run", 5, log)
    workers(launcher)[-1].send_signal(signal.SIGTERM)
    launcher.wait(120)
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert f"Stopped by SIGTERM at {saved.name.replace('-', ' ')} of " in log.read_text()
    assert verify(saved) == []
    assert len(list(saved.glob("model/*.safetensors"))) == (2 if {*SPLIT["fsdp"]} & {*settings} else 0)

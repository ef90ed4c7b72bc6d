"""Runs in which a process, its launcher or another rank dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import failing_rank
import psutil
import pytest
from launching import launch
from runs import ROOT, TINY
from stopping import LONG, start, wait_for_step

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("strategy", ["sync", pytest.param("local_sgd", marks=pytest.mark.slow)])
def test_a_fault_on_one_rank_ends_all_within_15_seconds(tmp_path, strategy):
    config = ["--config", ROOT / "recipes/configs/reviews/smoke.yaml", *TINY, f"train.strategy={strategy}",
              f"output_dir={tmp_path / 'run'}"]  # fmt: skip
    done = launch([Path(failing_rank.__file__), *config], 2, check=False)
    assert done.returncode == 1
    output = done.stdout + done.stderr
    assert time.time() - float((tmp_path / "run" / "failed_at").read_text()) < 15 + 1  # and the time to read this
    assert "[rank 1] Traceback" in output
    assert "ValueError: a fault on one rank" in output


def workers(launcher: subprocess.Popen) -> list[psutil.Process]:
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
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_sigterm_to_one_rank_makes_all_save_the_same_step(tmp_path, engine):
    log = tmp_path / "log"
    launcher = start(tmp_path / "run", log, *LONG, "checkpoint.save_steps=null", f"engine={engine}", processes=2)
    wait_for_step(launcher, tmp_path / "run", 5, log)
    workers(launcher)[-1].send_signal(signal.SIGTERM)
    launcher.wait(120)
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert f"SIGTERM: stopped after {saved.name.replace('-', ' ')}" in log.read_text()

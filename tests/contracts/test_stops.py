"""A stop signal during an evaluation, a generation or the report: saved at once, and gone; the run resumes exactly."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import slow_generation
from launching import Process, begin, launch_command
from runs import ROOT, SIZES, assert_same_weights, lines, predictions

from toolkit.checkpoint.manifest import verify

pytestmark = pytest.mark.slow
LEAVES_WITHIN = 10.0
RUN = (
    *SIZES["translation"],
    *("data.max_train_samples=24", "data.max_eval_samples=3", "train.max_steps=4", "checkpoint.save_steps=null"),
    *("eval.eval_steps=2", "task.val_max_target_length=64", "task.num_beams=1"),
)


def start(
    output_dir: Path, log: Path, *settings: str, seconds: float = 1.0, processes: int = 1, torchrun: bool = False
):
    config = ["--config", str(ROOT / "recipes/configs/translation/smoke.yaml")]
    words = [str(slow_generation.__file__), str(seconds), *config, *RUN, *settings, f"output_dir={output_dir}"]
    command = [sys.executable, *words]
    if torchrun:
        command = launch_command(words, processes)
    elif processes > 1:
        command = [sys.executable, "-m", "toolkit.system.launcher", str(processes), *command]
    return begin(command, log)


def wait_for(file: Path, process: Process, log: Path) -> None:
    until = time.monotonic() + 200
    while not file.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert start(folder / "run", folder / "log", seconds=0).wait(300) == 0, (folder / "log").read_text()
    return folder / "run"


@pytest.mark.parametrize(
    ("engine", "processes", "torchrun"),
    [
        ("loop", 1, False),
        ("trainer", 1, False),
        pytest.param("loop", 2, False, marks=pytest.mark.distributed),
        pytest.param("trainer", 2, True, marks=pytest.mark.distributed),
    ],
)
def test_a_generation_is_abandoned_and_repeated(uninterrupted, tmp_path, engine, processes, torchrun):
    """On two processes, the signal comes to one of them only."""
    run, log = tmp_path / "run", tmp_path / "log"
    settings = (f"engine={engine}", f"train.per_device_train_batch_size={8 // processes}")
    process = start(run, log, *settings, processes=processes, torchrun=torchrun)
    wait_for(run / "generating", process, log)
    ranks = psutil.Process(process.pid).children(recursive=True) or [psutil.Process(process.pid)]
    begun = time.monotonic()
    ranks[-1].send_signal(signal.SIGTERM)
    code = process.wait(60)
    _, alive = psutil.wait_procs(ranks, timeout=5)
    assert time.monotonic() - begun < LEAVES_WITHIN, log.read_text()
    assert alive == []
    assert code == (1 if torchrun else 128 + signal.SIGTERM), log.read_text()
    assert "Stopped by SIGTERM at step 2 of 4." in log.read_text()
    assert verify(run / "checkpoints" / "step-2") == []
    again = (*settings, "checkpoint.resume=auto")
    assert start(run, log, *again, seconds=0, processes=processes).wait(300) == 0, log.read_text()
    if processes == 1:
        assert_same_weights(run, uninterrupted)
        assert lines(run) == lines(uninterrupted)
        assert predictions(run) == predictions(uninterrupted)


@pytest.mark.parametrize(("saves", "hint"), [("null", False), ("4", True)])
def test_a_stop_while_results_are_written_keeps_the_model(uninterrupted, tmp_path, saves, hint):
    run, log = tmp_path / "run", tmp_path / "log"
    settings = (
        f"checkpoint.save_steps={saves}",
        "eval.eval_steps=null",
        "data.validation_split=0",
        "data.max_eval_samples=null",
    )
    process = start(run, log, *settings, "data.validation_file=null")
    wait_for(run / "reporting", process, log)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM, log.read_text()
    assert time.monotonic() - begun < LEAVES_WITHIN
    text = log.read_text()
    assert "Stopped by SIGTERM after training: the model is written, but not all results are." in text
    assert ("checkpoint.resume=auto" in text.split("after training")[1]) == hint
    assert_same_weights(run, uninterrupted)
    assert "result" not in json.loads((run / "run.json").read_text())


def test_a_second_signal_ends_at_once(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(run, log, seconds=8)
    wait_for(run / "generating", process, log)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(1.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 5
    assert not list(run.glob("checkpoints/step-*"))
    assert (run / "config.yaml").exists()

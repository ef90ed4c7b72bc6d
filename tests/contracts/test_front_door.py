"""`toolkit train --processes 2`, as a user sees it: exit codes, the last message, signals, a rank that fails."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import failing_rank
import pytest
from launching import Process, begin, launch
from runs import ROOT, TINY
from stopping import LONG, wait_for_step

from toolkit.checkpoint.manifest import verify

pytestmark = pytest.mark.distributed

RUN = ("reviews", "--config", "smoke", *TINY, *LONG, "checkpoint.save_steps=null", "output_dir=run")
TRAIN = ("-m", "toolkit", "train", *RUN, "--processes", "2")
IMPORTS = """
import sys
from toolkit.base.console import log_to_console
from toolkit.system.launcher import run_ranks
"""
# The session of a terminal, whose first process is a Python program.
BEGIN_SESSION = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
ENDED = re.compile(r"Stopped by (Ctrl-C|SIGTERM|SIGUSR1) at step (\d+) of \d+\. Resume with:")


def start(log: Path, *words: str) -> Process:
    """Starts Python in the log's folder, from where names of recipes and paths to shipped files work."""
    return begin([sys.executable, *words], log, folder=log.parent)


def with_fault(log: Path, fault: str, *settings: str) -> Process:
    """Starts two ranks of a run, one of which fails, by the toolkit's launcher."""
    recipe = ["--config", "recipes/configs/reviews/smoke.yaml", *RUN[3:], *settings]
    ranks = [sys.executable, failing_rank.__file__, fault, "1", *recipe]
    code = f"{IMPORTS}log_to_console()\nsys.exit(abs(run_ranks({ranks}, 2)))"
    return start(log, "-c", code)


def wait_until(process: Process | subprocess.Popen, condition: Callable[[], bool]) -> None:
    while not condition():
        assert process.poll() is None
        time.sleep(0.05)


def last_lines(log: Path, first: str) -> list[str]:
    """Returns the lines of the last message, which begins with `first`."""
    text = log.read_text().replace("\r", "\n").rstrip()
    assert "Traceback" not in text
    return text[text.rindex(first) :].splitlines()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((signal.SIGTERM, 143), (signal.SIGUSR1, 138))),
    ],
)
def test_a_stopped_run_saves_and_says_the_command_that_resumes_it(number, code, tmp_path):
    log = tmp_path / "log"
    run = start(log, *TRAIN)
    wait_for_step(run, tmp_path / "run", 5, log)
    run.send_signal(number)
    assert run.wait(120) == code, log.read_text()
    title, *command = last_lines(log, "Stopped by ")
    name, step = ENDED.fullmatch(title).groups()
    assert name == {130: "Ctrl-C", 138: "SIGUSR1", 143: "SIGTERM"}[code]
    assert verify(tmp_path / f"run/checkpoints/step-{step}") == []
    assert max(map(len, command)) <= 80
    words = shlex.split("\n".join(command).replace("\\\n", ""))
    assert words == ["toolkit", *TRAIN[2:], "checkpoint.resume=auto"]
    command = json.loads((tmp_path / "run/run.json").read_text())["command"]
    assert (Path(command[1]).parent.name, command[2:]) == ("toolkit", [*TRAIN[2:]])
    if code == 143:
        again = start(log, "-m", *words, "train.max_steps=60")
        assert again.wait(300) == 0, log.read_text()
        assert f"resuming from run/checkpoints/step-{step}" in log.read_text()


@pytest.mark.slow
def test_a_closed_terminal_does_not_lose_the_steps(tmp_path):
    """Closing a terminal sends SIGHUP, and makes each further write an error."""
    terminal, its_end = pty.openpty()
    begin = [sys.executable, "-c", BEGIN_SESSION, *TRAIN]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(begin, cwd=tmp_path, stdin=its_end, stdout=its_end, stderr=its_end, env=environ)
    os.close(its_end)
    threading.Thread(target=read_all, args=[terminal], daemon=True).start()  # a full terminal would block the run
    wait_until(run, (tmp_path / "run/metrics.jsonl").exists)
    os.close(terminal)
    assert run.wait(120) == 128 + signal.SIGHUP
    (saved,) = (tmp_path / "run/checkpoints").iterdir()
    assert verify(saved) == []


def read_all(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 1000):
            pass


@pytest.mark.slow
def test_a_step_may_take_longer_than_launchers_wait(tmp_path):
    log = tmp_path / "log"
    run = with_fault(log, "slow")
    wait_until(run, (tmp_path / "run/failed_at").exists)
    run.send_signal(signal.SIGTERM)
    assert run.wait(300) == 143, log.read_text()
    assert verify(tmp_path / f"run/checkpoints/step-{failing_rank.FAULT_STEP}") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("error", 1, r"\[rank 1\] Traceback"),
        ("kill", 9, r"rank 1 was killed by signal 9 \(SIGKILL\), out of memory\?"),
        ("elsewhere", 2, "output_dir: rank 1 on .* does not see the folder of rank 0 .*; it must be on a file system"),
    ],
)
def test_a_rank_that_fails_ends_all_within_15_seconds_and_has_the_last_word(fault, code, message, tmp_path):
    log = tmp_path / "log"
    run = with_fault(log, fault)
    assert run.wait(300) == code, log.read_text()
    if (note := tmp_path / "run/failed_at").exists():
        assert time.time() - float(note.read_text()) < 15 + 1
    text = log.read_text()
    assert re.search(f"^{message}", text, re.MULTILINE), text
    assert "[rank 0]" not in text  # which only lost the other
    assert "torch.distributed.elastic" not in text


@pytest.mark.slow
def test_wrong_input_is_said_once_and_first(tmp_path):
    log = tmp_path / "log"
    assert start(log, *TRAIN, "train.optim=adamw").wait(120) == 2
    first, problem, *further = log.read_text().strip().splitlines()
    assert first == "1 setting is wrong:"
    assert problem.startswith("  - override train.optim=adamw: train.optim: received 'adamw', allowed: ")
    assert further[:2] == ["looking for more (libraries, machine, model, data) ...", "  nothing else was found"]
    assert log.read_text().count("adamw'") == problem.count("adamw'")


def test_a_rank_that_a_signal_kills_is_a_failed_run(monkeypatch):
    from commands import run_command

    monkeypatch.setattr("toolkit.system.launcher.run_ranks", lambda command, processes: -9)
    assert run_command("train", "reviews", "--config", "smoke", "--processes", "2") == 1


@pytest.mark.slow
def test_a_launcher_file_leaves_nothing_for_accelerate_to_say(tmp_path):
    run = [ROOT / "recipes/reviews.py", "--config", ROOT / "recipes/configs/reviews/smoke.yaml", *TINY]
    done = launch([*run, "train.max_steps=1", f"output_dir={tmp_path / 'run'}"], env={"OMP_NUM_THREADS": "1"})
    said = done.stdout + done.stderr
    assert "Model, report and predictions are in " in said
    for foreign in ("accelerate", "WARNING", "Warning", "Traceback"):
        assert foreign not in said.replace(str(ROOT), "")


def test_processes_must_be_those_of_the_launcher(monkeypatch, capsys):
    from commands import run_command

    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run_command("train", *RUN, "--processes", "2") == 2
    assert "--processes: received 2, but the launcher started 1; remove the option" in capsys.readouterr().err

"""Processes that the lab starts: their environment, how they end, and their outcomes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from toolkit.base.errors import InputError
from toolkit.lab import worker
from toolkit.lab.jobs import jobs
from toolkit.lab.jobs.jobs import EXIT_TIMEOUT, Outcome, Trial, run_processes, run_trials


def test_processes_inherit_the_environment_but_nothing_of_a_launcher(tmp_path, monkeypatch):
    launcher = {"ACCELERATE_MIXED_PRECISION", "RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TOOLKIT_LAUNCHER"}
    for name in launcher:
        monkeypatch.setenv(name, "9")
    script = "import json, os, sys; print(json.dumps([dict(os.environ), sys.stdin.read(), os.getcwd()])); sys.exit(3)"
    log = tmp_path / "log"
    assert run_processes(["-c", script], environ={"OMP_NUM_THREADS": "2"}, log=log, folder=tmp_path) == 3
    environ, stdin, folder = json.loads(log.read_text())
    assert not launcher & environ.keys()
    assert (environ["HF_HUB_OFFLINE"], environ["OMP_NUM_THREADS"]) == ("1", "2")
    assert (stdin, folder) == ("", str(tmp_path))


def trials(folder: Path, *names: str) -> list[Trial]:
    return [Trial(name, {"folder": str(folder)}, folder / f"{name}.outcome.json") for name in names]


def in_this_process(monkeypatch) -> None:
    """Makes trials call test functions."""

    def refused(arguments):
        raise InputError("received 7, must be 8")

    def broken(arguments):
        raise ValueError("no")

    monkeypatch.setattr(worker, "WORK", {"fine": lambda arguments: arguments, "refused": refused, "broken": broken})
    monkeypatch.setattr(worker, "import_object", lambda function: function)

    def run(program, *arguments, log, **more):
        log.touch()
        try:
            worker.main(program[-1])
        except SystemExit as ended:
            return ended.code
        return 0

    monkeypatch.setattr(jobs, "run_processes", run)


def test_outcomes_are_results_or_the_error_of_the_first_that_failed(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    fine = Outcome(result={"folder": str(tmp_path)})
    assert run_trials(trials(tmp_path, "fine"), tmp_path / "one.log") == [fine]
    left_out = Outcome(error="did not run: a trial before it failed")
    for names, message in ((("refused", "broken"), "received 7, must be 8"), (("broken", "refused"), "ValueError: no")):
        outcomes = run_trials(trials(tmp_path, "fine", *names), tmp_path / "some.log")
        assert outcomes == [fine, Outcome(error=message), left_out]


@pytest.mark.parametrize(
    ("script", "died", "words"),
    [
        ("import sys; sys.exit('no room')", 1, "its process ended with exit code 1; the end of .*\n  no room"),
        ("import os; os.kill(os.getpid(), 9)", -9, r"was killed by signal 9 \(out of memory\?\)"),
        ("import time; time.sleep(60)", EXIT_TIMEOUT, "did not end within 1 seconds"),
        ("pass", 0, "ended with exit code 0"),
    ],
)
def test_processes_that_end_without_a_word_are_described(script, died, words, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "WORKER", ("-c", script))
    (stale,) = asked = trials(tmp_path, "compare")
    stale.outcome.write_text('{"result": "of an earlier launch"}')
    (outcome,) = run_trials(asked, tmp_path / "one.log", timeout=1.0 if died == EXIT_TIMEOUT else None)
    assert (outcome.result, outcome.died) == (None, died)
    assert outcome.error is not None
    assert re.search(words, outcome.error), outcome.error


@pytest.mark.parametrize("end", ["os.abort()", "sys.exit(1)"])
def test_complete_results_count_however_the_processes_end(end, tmp_path, monkeypatch, caplog):
    script = f"""if True:
        import json, os, sys
        for trial in json.load(open(sys.argv[1])):
            open(trial["outcome"], "w").write('{{"result": 7}}')
        {end}
    """
    monkeypatch.setattr(jobs, "WORKER", ("-c", script))
    assert run_trials(trials(tmp_path, "one", "two"), tmp_path / "some.log") == [Outcome(result=7)] * 2
    assert "all results are complete, but then its process " in caplog.text


def test_all_ranks_write_to_the_log_and_a_signal_is_told(tmp_path):
    script = (
        "import os; rank = os.environ['RANK']; print('rank', rank, flush=True); rank == '1' and os.kill(os.getpid(), 9)"
    )
    assert run_processes(["-c", script], processes=2, log=tmp_path / "log") == -9
    *ranks, blank, last = (tmp_path / "log").read_text().splitlines()
    assert sorted(ranks) == ["rank 0", "rank 1"]
    assert (blank, last) == ("", "rank 1 was killed by signal 9 (SIGKILL), out of memory?")


PARENT = """
import sys
from toolkit.lab.jobs.jobs import run_processes
run_processes([sys.argv[1], sys.argv[2]], processes=int(sys.argv[3]))
"""
CHILD = """
import os, sys, time
from pathlib import Path
from toolkit.base.processes import die_with_parent
die_with_parent()
Path(sys.argv[1], os.environ.get("RANK", "0")).write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.distributed])])
def test_no_process_outlives_one_that_is_killed(processes, tmp_path):
    script, ids = tmp_path / "child.py", tmp_path / "ids"
    script.write_text(CHILD)
    ids.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(script), str(ids), str(processes)])
    wait_until(lambda: sum(bool(file.read_text()) for file in ids.iterdir()) == processes)
    started = [int(file.read_text()) for file in ids.iterdir()]
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(alive, started)))


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)

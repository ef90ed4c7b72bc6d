"""The launcher of `toolkit train`: environment, exit codes, messages and signals; ranks of other launchers."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from toolkit.base.errors import InputError
from toolkit.base.processes import EXIT_STALLED
from toolkit.system import activity, launcher
from toolkit.system.activity import StartWatch
from toolkit.system.launcher import launched_processes, run_ranks, slurm_rank


@pytest.fixture(autouse=True)
def _no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLURM_"):
            monkeypatch.delenv(name)


def run(script: str) -> int:
    """Runs a Python script on two ranks; `rank` is its rank."""
    head = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\nlaunched_by = os.getppid()\n"
    return run_ranks([sys.executable, "-c", head + textwrap.dedent(script)], 2)


def test_ranks_know_each_other_and_share_the_cores(monkeypatch, capfd):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(6), raising=False)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    assert run(f"print([os.environ[name] for name in {names}], int(os.environ['MASTER_PORT']) > 0)") == 0
    assert capfd.readouterr().out == "['0', '0', '2', '2', '127.0.0.1', '3'] True\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert run("print(os.environ['OMP_NUM_THREADS'])") == 0
    assert capfd.readouterr().out == "5\n"


FAILURES = [
    # Both ranks find the mistake, and the first prints it.
    ("if rank == 0: print('a mistake', file=sys.stderr)\nprint('noise')\nsys.exit(2)", 2, "a mistake\n"),
    # One rank fails; the other notices it and may even end before.
    (
        "if rank == 0: sys.exit(75)\n"
        "time.sleep(.5); print('noise'); print('\\n[rank 1] DataError: row 3', file=sys.stderr); sys.exit(2)",
        2,
        "\n[rank 1] DataError: row 3\n",
    ),
    ("sys.exit(75)", 1, "\nthe ranks lost their connection to each other\n"),
    # The others hang.
    ("time.sleep(60 if rank == 0 else 0)\nprint('unusual'); sys.exit(3)", 3, "\nrank 1 ended with code 3\n  unusual\n"),
    (
        "time.sleep(60 if rank == 0 else 0)\nos.kill(os.getpid(), signal.SIGKILL)",
        -9,
        "\nrank 1 was killed by signal 9 (SIGKILL), out of memory?\n",
    ),
    (
        "time.sleep(60 * rank)\nos.kill(os.getpid(), signal.SIGSEGV)",
        -11,
        "\nrank 0 was killed by signal 11 (SIGSEGV)\n",
    ),
]


@pytest.mark.parametrize(
    ("script", "code", "message"), FAILURES, ids=["all", "one", "lost", "hang", "killed", "crashed"]
)
def test_the_rank_that_fails_first_gives_code_and_last_message(script, code, message, monkeypatch, capfd):
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.1 if "sleep(60" in script else 5.0)
    began = time.monotonic()
    assert run(script) == code
    assert capfd.readouterr().err == message
    assert time.monotonic() - began < 30


def test_a_rank_that_is_aborted_comes_after_the_one_that_fails_with_it():
    def ended(*codes: int) -> int | None:
        return launcher.Ranks([SimpleNamespace(poll=lambda code=code: code) for code in codes]).wait()

    assert (ended(-6, 2), ended(-6, -9), ended(-6, 75), ended(75, -6), ended(0, 0)) == (1, 1, 0, 1, None)


@pytest.fixture
def _short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "LIMIT_SECONDS", 1.0)
    monkeypatch.setattr(activity, "LOOK_SECONDS", 0.2)


@pytest.mark.usefixtures("_short_start")
def test_a_rank_that_is_stopped_before_the_ranks_have_met_is_named(capfd):
    assert run("if rank: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)") == EXIT_STALLED
    error = capfd.readouterr().err
    assert re.match(r"\nrank 1 \(process \d+\) stopped \(SIGSTOP\) for 1 s before all ranks had met, ", error)


MEETS = """
import subprocess
from toolkit.system.activity import heartbeat_has_begun
heartbeat_has_begun()
if rank:
    subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
print(os.environ.get("TOOLKIT_FIRST_BEAT"))
"""


@pytest.mark.usefixtures("_short_start")
def test_once_the_ranks_have_met_their_heartbeat_looks_for_stopped_ones(capfd):
    assert run(MEETS) == 0
    assert capfd.readouterr() == ("None\n", "")


def test_ranks_that_are_all_stopped_wait_to_be_continued():
    states = ["stopped", "stopped"]
    with StartWatch() as watch:
        watch.begin([os.getpid()] * 2)
        for rank in range(2):
            watch.ranks[rank].tick = lambda elapsed, rank=rank: states[rank]
        assert {watch.problem(60.0) for _ in range(9)} == {""}
        states[0] = "idle"
        assert [bool(watch.problem(60.0)) for _ in range(2)] == [False, True]
        states[1] = "computes"
        assert not watch.problem(60.0)


def test_nobody_else_is_given_the_port_that_the_first_rank_will_use():
    with launcher.reserved_port() as held, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(held.getsockname())
        socket.create_server(held.getsockname()).close()  # it sets SO_REUSEADDR, as torch does


ENDS = """
import atexit, threading
from toolkit.base.processes import end_process
class Late:
    def __del__(self):
        os.abort()
late = Late()  # the interpreter would destroy it
atexit.register(print, "handler")
threading.Timer(.2, print, ["thread"]).start()
end_process(0)
"""


def test_a_rank_that_is_done_cannot_fail_any_more(capfd):
    assert run(ENDS) == 0
    assert capfd.readouterr() == ("thread\nhandler\n", "")


LEAVES = """
from pathlib import Path
from torch import distributed
from toolkit.base.cli_errors import leave_group
late = Path({late!r})
distributed.init_process_group("gloo")
if rank and {fails}:
    sys.exit(3)
if rank:
    time.sleep(1)
    late.touch()
leave_group()
print(late.exists(), distributed.is_initialized())
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_no_rank_leaves_before_all_are_done_unless_one_has_failed(tmp_path, capfd):
    assert run(LEAVES.format(late=str(tmp_path / "late"), fails=False)) == 0
    assert capfd.readouterr().out == "True False\n"
    assert run(LEAVES.format(late=str(tmp_path / "never"), fails=True)) == 3
    assert capfd.readouterr().out == "False False\n"


SAVES = """
received = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: received.append(number))
if rank == 0:
    open({ready!r}, "w").close()
else:
    while not os.path.exists({ready!r}):
        time.sleep(.02)
    os.kill(launched_by, {number})
    os.kill(launched_by, {number})  # a scheduler's and a launcher's
while not received:
    time.sleep(.02)
time.sleep(.5 * (1 - rank))  # the first rank takes longer than GRACE_SECONDS to save
if rank == 0:
    print("saved", len(received))
sys.exit(128 + received[0])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_reaches_each_rank_once_and_all_have_time_to_save(number, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(launcher, "ECHO_SECONDS", 600.0)  # on a busy machine, the second one may come late
    before = signal.getsignal(number)
    assert run(SAVES.format(number=int(number), ready=str(tmp_path / "ready"))) == 128 + number
    assert capfd.readouterr() == ("saved 1\n", "")
    assert signal.getsignal(number) == before


def test_a_stop_signal_that_interrupts_the_first_one_kills_nobody():
    sent: list[int] = []

    class Process:
        def send_signal(self, number: int) -> None:
            sent.append(number)
            if len(sent) == 1:
                ranks.stop(signal.SIGINT, None)

    ranks = launcher.Ranks([Process(), Process()])
    ranks.stop(signal.SIGINT, None)
    assert sent == [signal.SIGINT, signal.SIGINT]


def test_a_second_stop_signal_ends_at_once(monkeypatch, capfd):
    monkeypatch.setattr(launcher, "ECHO_SECONDS", 0.0)
    script = "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(.5)\nif rank: os.kill(launched_by, 2), "
    assert run(f"{script}time.sleep(.1), os.kill(launched_by, 2)\ntime.sleep(60)") == 130
    assert capfd.readouterr().err == "\nStopped by Ctrl-C, without saving.\n"


def test_other_launchers_are_recognised():
    assert launched_processes({"ACCELERATE_MIXED_PRECISION": "no"}) == 1
    assert launched_processes({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}) == 4
    assert launched_processes({}) is None


STEP = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_ID": "45007",
}


def test_a_task_of_srun_is_a_rank():
    assert slurm_rank(STEP | {"MASTER_ADDR": "node-1"}) == {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "node-1", "MASTER_PORT": "15007",
    }  # fmt: skip
    assert slurm_rank(STEP | {"SLURM_STEP_NUM_NODES": "1", "MASTER_PORT": "1"})["MASTER_ADDR"] == "127.0.0.1"
    # The batch script itself, one task, and a task that has been made a rank already.
    for other in ({"SLURM_PROCID": "0"}, STEP | {"SLURM_STEP_NUM_TASKS": "1"}, STEP | {"LOCAL_RANK": "1"}):
        assert slurm_rank(other) == {}
    with pytest.raises(InputError, match="MASTER_ADDR"):
        slurm_rank(STEP)

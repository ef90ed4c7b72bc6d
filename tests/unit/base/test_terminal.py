"""Printing to a terminal that was closed, to no reader, a full disk, or in ASCII."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys

import pytest

SCRIPT = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # comes late
from tqdm import tqdm
from toolkit.base.processes import outlive_output
outlive_output()
bar = tqdm(total=10, mininterval=0)
print("begun", flush=True)
sys.stdin.read()
print("on stdout", flush=True)
print("on stderr", file=sys.stderr)
bar.update()
bar.close()
"""


def test_what_is_printed_to_a_closed_terminal_goes_nowhere():
    terminal, its_end = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=its_end, stderr=its_end, start_new_session=True
    )
    os.close(its_end)
    printed = b""
    while b"begun" not in printed:
        printed += os.read(terminal, 1000)
    os.close(terminal)
    assert run.stdin is not None
    run.stdin.close()
    assert run.wait(60) == 0


TRAINING = """
import sys
from toolkit.base.cli_errors import guarded
from toolkit.base.console import say
from toolkit.base.processes import train_on_without_output
def work():
    if sys.argv[1] == "train":
        train_on_without_output()
    for number in range(20_000):
        say(f"step {number} …")
    sys.stdout.flush()
    open(sys.argv[2], "w").write("the model")
guarded(work)
"""


FULL = "{} > /dev/full"


@pytest.mark.fast(2)
@pytest.mark.parametrize("shell", ["{} | head -1", FULL, "{} >&-", "{} 2>&- >&-", "PYTHONIOENCODING=ascii {}"])
def test_output_that_cannot_be_printed_costs_no_training(shell, tmp_path):
    command = shlex.join([sys.executable, "-c", TRAINING, "train", str(tmp_path / "model")])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell.format(command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model").read_text() == "the model"
    lost = "warning: <stdout>: No space left on device; nothing more is printed there\n"
    assert done.stderr == (lost if shell == FULL else "")


@pytest.mark.parametrize(("shell", "said"), [("{} | head -1", ""), (FULL, "<stdout>: No space left on device\n")])
def test_a_command_that_only_prints_ends_where_it_cannot(shell, said, tmp_path):
    command = shlex.join([sys.executable, "-c", TRAINING, "print", str(tmp_path / "end")])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell.format(command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "end").exists()

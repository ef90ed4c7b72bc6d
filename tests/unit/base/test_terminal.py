"""Printing to a terminal that was closed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

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

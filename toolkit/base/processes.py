"""The rank of this process and how it ends, from the environment alone; imports nothing heavy."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def is_launched() -> bool:
    """Whether a launcher (accelerate, torchrun) started this process."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ or "LOCAL_RANK" in os.environ


def is_first_rank() -> bool:
    """Whether this is the process that logs, before any process group exists."""
    return os.environ.get("RANK", "0") == "0"


def die_with_launcher() -> None:
    """Makes this process receive SIGTERM when its launcher dies; otherwise it would keep running (Linux only)."""
    if is_launched():
        die_with_parent(signal.SIGTERM)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Makes this process receive a signal when its parent dies, also after `exec` (Linux only)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os.kill(os.getpid(), number)


def end_process(code: int) -> NoReturn:
    """Ends this process; with an error code immediately, since waiting for other ranks would delay the exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        time.sleep(0.1)  # let the launcher read the message before it sees the process gone
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":  # `python -m toolkit.base.processes COMMAND ...`: the command ends when its parent dies
    die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])

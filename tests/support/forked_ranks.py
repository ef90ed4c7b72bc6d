"""A script as several ranks that are forked from one process, which has imported the libraries once.

`forked_ranks.py PROCESSES SCRIPT ARGUMENTS...` starts a rank in 1 s instead of 8. Tests of what a launcher does use a
real one (`launching.launch`).
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

import accelerate  # noqa: F401
import datasets  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch  # noqa: F401
from forked import free_port, rank_variables
from transformers import Trainer  # noqa: F401

import toolkit.run  # noqa: F401

GRACE_SECONDS = 10.0
"""How long the other ranks may take to end after one has failed."""


def start(rank: int, processes: int, port: int, words: list[str]) -> int:
    """Forks a rank, and returns its id."""
    if (child := os.fork()) != 0:
        return child
    try:
        os.environ.update(rank_variables(rank, processes, port))
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # the scripts end themselves (`finishing.finish`)


def wait(ranks: set[int]) -> int:
    """Waits until all ranks have ended; returns the exit code of the first that failed, or 0."""
    failed, deadline = 0, float("inf")
    while ranks:
        ended, status = os.waitpid(-1, os.WNOHANG)
        ranks.discard(ended)
        if ended and (code := os.waitstatus_to_exitcode(status)) and not failed:
            failed, deadline = abs(code), time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            deadline = float("inf")
        if not ended:
            time.sleep(0.01)
    return failed


if __name__ == "__main__":
    gc.freeze()  # what is imported is never garbage, and looking through it takes half a second
    count, port = int(sys.argv[1]), free_port()
    sys.exit(wait({start(rank, count, port, sys.argv[2:]) for rank in range(count)}))

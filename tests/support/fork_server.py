"""A process that has imported everything a run needs, and forks a child for each run: 1 s instead of 8 s.

It reads one JSON request per line and answers with one line:

    {"start": {"argv": [...], "env": {...}, "whole": whether `env` replaces that of the server, "folder": working
               directory or null, "log": file, "errors": file, "hooks": [[name, arguments], ...]}} -> process id
    {"wait": process id, "seconds": s} -> exit status (negative for a signal), null if it still runs

`argv` is the command line of a recipe or, beginning with `toolkit` or `python`, of that command. Where such a child
starts Python itself, as a launcher starts ranks, this is a fork, too (`forking.py`).
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import IO, Any

import accelerate.commands.launch  # noqa: F401
import forking
import runs
import torch.distributed.run  # noqa: F401
from accelerate.state import AcceleratorState
from tqdm import tqdm

from toolkit.recipe import load_task_type

ROOT = Path(__file__).resolve().parents[2]


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answers requests until there are no more."""
    gc.freeze()  # what is imported is never garbage, and looking through it takes half a second
    for line in requests:
        request = json.loads(line)
        answer = start(request["start"]) if "start" in request else wait(request["wait"], request["seconds"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def start(job: dict[str, Any]) -> int:
    """Forks a child that runs a command line, and returns its id."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        forking.ending(lambda: (prepare(job), run(job["argv"])))
    return child


def prepare(job: dict[str, Any]) -> None:
    """Makes this child a process of its own, with the job's output, variables and hooks."""
    os.setsid()
    for descriptor, name in ((1, "log"), (2, "errors")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    forking.leave_parent()
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):  # one that a shell has ignored, too
        signal.signal(getattr(signal, name), signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    if job["whole"]:
        os.environ.clear()
    os.environ.update(job["env"])
    tempfile.tempdir = None  # that of these variables
    faulthandler.register(forking.SHOW_STACKS, file=2)
    if job["folder"] is not None:
        os.chdir(job["folder"])
    sys.argv = list(job["argv"])
    if job["hooks"]:
        import fault_hooks

        for name, arguments in job["hooks"]:
            fault_hooks.HOOKS[name](**arguments)


def run(argv: list[str]) -> None:
    """Runs the command line of a recipe, of the toolkit or of Python."""
    if argv[0] == "python":
        forking.run_python(argv[1:])
    elif argv[0] == "toolkit":
        from toolkit.commands.cli import main

        main(argv[1:])
    else:
        from toolkit.main import main as recipe_main

        recipe_main(load_task_type(argv[0]), argv[1:])


def wait(child: int, seconds: float) -> int | None:
    """Waits for a child; returns its exit code, or the negative number of the signal that killed it."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.01)


def warm_up() -> None:
    """Trains once with each engine, so that no child need import, compile and check for itself what every run uses."""
    tqdm.monitor_interval = 0  # a fork has no threads of its parent
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of all forks, which one that is killed may hold for ever
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        for engine in ("loop", "trainer"):
            runs.train("reviews", Path(folder) / engine, "train.max_steps=1", f"engine={engine}", double=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    if sys.platform == "linux":
        assert "/dev/shm/sem." not in Path("/proc/self/maps").read_text()  # no semaphore that forks would share


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.chdir(ROOT)
    warm_up()
    forking.fork_python()
    serve(os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w"))

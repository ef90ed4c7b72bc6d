"""A process that has imported everything a run needs, and forks a child for each run: 1 s instead of 8 s.

It reads one JSON request per line and answers with one line:

    {"start": {"argv": [...], "env": {...}, "whole": whether `env` replaces that of the server, "folder": working
               directory or null, "log": file, "errors": file, "hooks": [[name, arguments], ...]}} -> process id
    {"wait": process id, "seconds": s} -> exit status (negative for a signal), null if it still runs
    {"import": file} -> number of modules that were imported

`argv` is the command line of a recipe or, beginning with `toolkit` or `python`, of that command. Where such a child
starts Python itself, as a launcher starts ranks, this is a fork, too (`forking.py`).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import IO, Any

import accelerate.commands.launch  # noqa: F401
import datasets  # noqa: F401
import forking
import runs
import sklearn.metrics  # noqa: F401
import torch.distributed.run  # noqa: F401
from accelerate.state import AcceleratorState
from tqdm import tqdm
from transformers import Trainer  # noqa: F401

import toolkit.run  # noqa: F401
from toolkit.recipe import load_task_type

ROOT = Path(__file__).resolve().parents[2]


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answers requests until there are no more."""
    gc.freeze()  # what is imported is never garbage, and looking through it takes half a second
    for line in requests:
        request = json.loads(line)
        if "start" in request:
            answer: Any = start(request["start"])
        elif "wait" in request:
            answer = wait(request["wait"], request["seconds"])
        else:
            answer = import_listed(Path(request["import"]))
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


def import_listed(file: Path) -> int:
    """Imports modules by name that a child has used, so that further children need not."""
    count = 0
    for name in json.loads(file.read_text()):
        if name not in sys.modules:
            try:
                importlib.import_module(name)
                count += 1
            except Exception:  # a module that a library makes while it runs
                continue
    gc.freeze()
    return count


def warm_up() -> None:
    """Trains once, so that no child need import, compile and check for itself what every run uses."""
    tqdm.monitor_interval = 0  # a fork has no threads of its parent
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        runs.train("reviews", Path(folder) / "run", "train.max_steps=1", double=True)
    AcceleratorState._reset_state(reset_partial_state=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.chdir(ROOT)
    warm_up()
    forking.fork_python()
    serve(os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w"))

"""A process that has imported everything a run needs, and forks a child for each run: 1 s instead of 8 s.

It reads one JSON request per line and answers with one line:

    {"start": {"argv": [...], "env": {...}, "whole": whether `env` replaces that of the server, "folder": working
               directory or null, "log": file, "hooks": [[name, arguments], ...]}} -> process id
    {"wait": process id, "seconds": s} -> exit status (negative for a signal), null if it still runs
    {"import": file} -> number of modules that were imported

`argv` is the command line of a recipe or, beginning with `toolkit` or `python`, of that command.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import IO, Any

import accelerate  # noqa: F401
import datasets  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch  # noqa: F401
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
    if (child := os.fork()) != 0:
        return child
    code = 1
    try:
        prepare(job)
        run(job["argv"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def prepare(job: dict[str, Any]) -> None:
    """Makes this child a process of its own, with the job's output, variables and hooks."""
    os.setsid()
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 64)  # what the server has open, the requests of which belong to it alone
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):
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
        run_python(argv[1:])
    elif argv[0] == "toolkit":
        from toolkit.commands.cli import main

        main(argv[1:])
    else:
        from toolkit.main import main as recipe_main

        recipe_main(load_task_type(argv[0]), argv[1:])


def run_python(words: list[str]) -> None:
    """Runs a script, a module (`-m`) or a text (`-c`) with its arguments."""
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<text>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def leave(code: int) -> None:
    """Ends this child as `multiprocessing` does, without a teardown of the interpreter."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait(child: int, seconds: float) -> int | None:
    """Waits for a child; returns its exit code, or the negative number of the signal that killed it."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


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


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.chdir(ROOT)
    serve(os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w"))

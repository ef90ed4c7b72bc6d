"""Starts Python as forks of a process that has imported the libraries, for that process and its descendants."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NoReturn

READ_ONCE = ("HF_", "OMP_", "MKL_", "LD_", "MPL")
"""Beginnings of environment variables that libraries read while they are imported."""
SHOW_STACKS = signal.SIGRTMIN
"""The signal at which a fork, and what it forks, write the stacks of their threads."""


def fork_python() -> None:
    """Makes `subprocess.Popen` and `os.execv` fork this process where they would start its interpreter.

    The new process has the parent, session, descriptors, variables and exit code that it would have otherwise. It is
    started in earnest if it has other variables of those that are read only once.
    """
    execute, replace = subprocess.Popen._execute_child, os.execv  # type: ignore[attr-defined]
    names = signature(execute)
    variables = read_once(os.environ)

    def execute_child(process: Any, *given: Any) -> None:
        how = names.bind(process, *given).arguments
        words = [how["args"]] if isinstance(how["args"], str) else [os.fspath(word) for word in how["args"]]
        other = how["env"] is not None and read_once(how["env"]) != variables
        if words[0] != sys.executable or how["executable"] not in (None, sys.executable) or other:
            execute(process, *given)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if (child := os.fork()) == 0:
            ending(lambda: (become(how), run_python(words[1:])))
        process.pid, process._child_created = child, True
        process._close_pipe_fds(*(how[name] for name in PIPES))

    def execv(path: str, words: Sequence[str]) -> NoReturn:
        if path != sys.executable:
            replace(path, words)
        run_python(list(words[1:]))
        sys.exit(0)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    os.execv = execv


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def read_once(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that are read only once."""
    return {name: value for name, value in environ.items() if name.startswith(READ_ONCE)}


def become(how: Mapping[str, Any]) -> None:
    """Gives a forked process what `subprocess.Popen` was asked for."""
    if how["start_new_session"]:
        os.setsid()
    for name, descriptor in (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2)):
        if how[name] != -1:
            os.dup2(how[name], descriptor)
    if how["cwd"] is not None:
        os.chdir(how["cwd"])
    if how["env"] is not None:
        os.environ.clear()
        os.environ.update(how["env"])
    leave_parent(how["pass_fds"])
    if how["preexec_fn"] is not None:
        how["preexec_fn"]()


def leave_parent(kept: Sequence[int] = ()) -> None:
    """Drops what a fork has of its parent and a started process has not: handlers of signals and of the exit, files."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number == signal.SIGINT and handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
        elif callable(handler) and not isinstance(handler, signal.Handlers):
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    atexit._clear()
    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python leaves that of the parent
    for descriptor in {*range(3, 256)} - {*kept}:
        with suppress(OSError):
            os.close(descriptor)


def run_python(words: list[str]) -> None:
    """Runs a script, a module (`-m`) or a text (`-c`) with its arguments."""
    if words[0] == "-u":
        words = words[1:]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<text>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def ending(program: Callable[[], object]) -> NoReturn:
    """Runs a forked process's program to its end, without a teardown of the interpreter (as `multiprocessing`)."""
    code = 1
    try:
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)

"""Starts scripts through `accelerate launch`, as a user would, on one or several CPU processes."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NoReturn

import psutil
from forked import Forked, ForkServer, show_stacks
from forking import read_once

ROOT = Path(__file__).resolve().parents[2]

Process = Forked | subprocess.Popen


def launch_command(args: Sequence[str | Path], num_processes: int = 1) -> list[str]:
    """Returns the command line that runs `args` (a script, or `-m` and a module, and its arguments).

    The configuration for two processes selects a free port for each run, so that tests can run in parallel.
    """
    config = "cpu.yaml" if num_processes == 1 else "cpu_2proc.yaml"
    launcher = [sys.executable, "-m", "accelerate.commands.launch"]
    options = ["--config_file", str(ROOT / "accelerate_configs" / config), "--num_processes", str(num_processes)]
    return [*launcher, *options, *map(str, args)]


def launch(args: Sequence[str | Path], num_processes: int = 1, **settings: Any) -> CompletedProcess[str]:
    """Runs `args` under the launcher, in the repository's root.

    Args:
        args: script (or `-m` and a module) and its arguments.
        num_processes: number of CPU processes.
        **settings: as for `run`.

    Raises:
        AssertionError: after a timeout or a failure, with the complete output.
    """
    return run(launch_command(args, num_processes), **settings)


TEMPORARY, SERVER = tempfile.gettempdir(), dict(os.environ)
"""Folder of temporary files and variables, before a test changes them."""
GRACE_SECONDS = 10.0
"""How long forked ranks may take to end after one has failed."""


@cache
def fork_server() -> ForkServer:
    """Returns this process's server, which starts a rank in 1 s instead of 8."""
    folder = tempfile.TemporaryDirectory(prefix="toolkit-forks-", dir=TEMPORARY)
    server = ForkServer(Path(folder.name), own_caches=False)
    server.__enter__()
    atexit.register(lambda: (server.__exit__(), folder.cleanup()))
    return server


def begin(
    command: Sequence[str],
    log: Path,
    *,
    errors: Path | None = None,
    env: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Process:
    """Starts a command of Python, a launcher, too, as a fork; its output is appended to a file.

    Only where it has other variables of those that libraries read while they are imported is it started in earnest.
    """
    environ = {**os.environ, **(env or {})}
    python, *words = map(str, command)
    assert python == sys.executable, command
    if read_once(environ) == read_once(SERVER):
        started = fork_server().start(
            ["python", *words], env=environ, whole=True, folder=folder, log=log, errors=errors
        )
        return Forked(started.server, *started.pids)
    with log.open("ab") as out, (errors or log).open("ab") as err:
        return subprocess.Popen(command, stdout=out, stderr=err, env=environ, cwd=folder)


def fork(args: Sequence[str | Path], num_processes: int, timeout: float = 600) -> None:
    """Runs a script of `tests/support` as several ranks of the fork server; see `launch`."""
    started = fork_server().start(["python", *args], processes=num_processes, env=os.environ, whole=True, folder=ROOT)
    ended = started.wait(timeout, GRACE_SECONDS)
    assert not ended.hung, ended.output
    assert not any(ended.codes), f"{ended.codes}: {args}\n{ended.output}"


def fork_trials(
    run_processes: Callable[..., int], program: Sequence[str], processes: int = 1, *launch: Any, **settings: Any
) -> int:
    """Runs the trials of a tool on the fork server, in place of `run_processes` of `toolkit.lab.jobs.jobs`."""
    from toolkit.lab.jobs.jobs import EXIT_TIMEOUT, inherited_environment

    how = signature(run_processes).bind(program, processes, *launch, **settings)
    how.apply_defaults()
    launcher, environ, log, folder, timeout = (
        how.arguments[name] for name in ("launcher", "environ", "log", "folder", "timeout")
    )
    if launcher is not None:
        return run_processes(*how.args, **how.kwargs)
    env = inherited_environment() | dict(environ or {})
    started = fork_server().start(
        ["python", *program], processes=processes, env=env, whole=True, folder=folder or Path.cwd()
    )
    ended = started.wait(timeout or 600, GRACE_SECONDS)
    if log is not None:
        log.write_text(ended.output, encoding="utf-8")
    else:
        print(ended.output, end="", flush=True)
    return EXIT_TIMEOUT if ended.hung else next(filter(None, ended.codes), 0)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
    check: bool = True,
    folder: Path = ROOT,
) -> CompletedProcess[str]:
    """Runs a command of Python in a folder; see `begin`.

    Args:
        command: the command and its arguments.
        env: environment variables to add.
        timeout: seconds after which the command and its child processes are killed.
        check: whether to fail on exit codes other than 0.
        folder: the folder, by default the repository's root.

    Raises:
        AssertionError: after a timeout or a failure, with the complete output.
    """
    # Files instead of pipes: a worker that outlives its launcher would keep a pipe open.
    with tempfile.TemporaryDirectory(dir=TEMPORARY) as logs:
        out, err = Path(logs, "out"), Path(logs, "err")
        process = begin(command, out, errors=err, env=env, folder=folder)
        try:
            process.wait(timeout)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
            show_stacks([process.pid])
            kill_tree(process.pid)
            process.wait()
        result = CompletedProcess(command, process.returncode, out.read_text(), err.read_text())
    how = f"exit code {result.returncode}" if ended else f"killed after {timeout} s"
    report = f"{how}: {' '.join(map(str, command))}\n--- stdout\n{result.stdout}\n--- stderr\n{result.stderr}"
    assert ended, report
    assert not check or result.returncode == 0, report
    return result


def fail_hung(pid: int, log: Path) -> NoReturn:
    """Fails with a process's log, to which it and its descendants add their stacks before they are killed."""
    show_stacks([pid])
    kill_tree(pid)
    raise AssertionError(log.read_text())


def kill_tree(pid: int) -> None:
    """Kills a process and all its descendants."""
    parent = psutil.Process(pid)
    for process in [*parent.children(recursive=True), parent]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue

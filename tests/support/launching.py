"""Starts scripts through `accelerate launch`, as a user would, on one or several CPU processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


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


def fork(args: Sequence[str | Path], num_processes: int, **settings: Any) -> CompletedProcess[str]:
    """Runs a script of `tests/support` as several ranks without a launcher, which is faster; see `launch`."""
    script = Path(__file__).with_name("forked_ranks.py")
    return run([sys.executable, str(script), str(num_processes), *map(str, args)], **settings)


def run(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 600, check: bool = True
) -> CompletedProcess[str]:
    """Runs a command in the repository's root.

    Args:
        command: the command and its arguments.
        env: environment variables to add.
        timeout: seconds after which the command and its child processes are killed.
        check: whether to fail on exit codes other than 0.

    Raises:
        AssertionError: after a timeout or a failure, with the complete output.
    """
    # Files instead of pipes: a worker that outlives its launcher would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **(env or {})}, cwd=ROOT)
        try:
            process.wait(timeout)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
            kill_tree(process.pid)
            process.wait()
        out.seek(0)
        err.seek(0)
        result = CompletedProcess(command, process.returncode, out.read(), err.read())
    how = f"exit code {result.returncode}" if ended else f"killed after {timeout} s"
    report = f"{how}: {' '.join(command)}\n--- stdout\n{result.stdout}\n--- stderr\n{result.stderr}"
    assert ended, report
    assert not check or result.returncode == 0, report
    return result


def kill_tree(pid: int) -> None:
    """Kills a process and all its descendants."""
    parent = psutil.Process(pid)
    for process in [*parent.children(recursive=True), parent]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue

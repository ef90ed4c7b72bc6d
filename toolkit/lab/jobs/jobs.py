"""Starts the processes in which certify, compare, plan and reproduce run their trainings, and collects the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit.base.console import warn
from toolkit.base.files import write_json
from toolkit.base.processes import OWN_LAUNCHER

WORKER = ("-m", "toolkit.lab.worker")
EXIT_TIMEOUT = 124
"""Exit code of processes that were killed after the timeout, as with the command `timeout`."""
LOG_LINES = 15
"""Lines from the end of a log that an error shows."""
_LAUNCHERS = ("ACCELERATE_", "TORCHELASTIC_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "GROUP_", "ROLE_")
_OF_RANKS = {OWN_LAUNCHER, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Trial:
    """A call of a function in `toolkit.lab.worker.WORK`, in separate processes.

    Args:
        work: key of the function in `WORK`.
        arguments: its argument, a JSON object.
        outcome: the file for its result or error.
    """

    work: str
    arguments: Mapping[str, Any]
    outcome: Path


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Args:
        result: the function's result on the first rank, or None if the trial failed.
        error: why it failed, or None.
        died: exit code of processes that ended without reporting an error (negative for a signal), or None.
    """

    result: Any = None
    error: str | None = None
    died: int | None = None


def run_trials(
    trials: Sequence[Trial],
    log: Path,
    processes: int = 1,
    launcher: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> list[Outcome]:
    """Runs trials one after the other in one launch, and stops at the first that fails.

    A result counts as soon as it is written, however the processes end afterwards; an unusual end is a warning.

    Args:
        trials: at least one trial.
        log: file for the output; the trials are written beside it, as `.json`.
        processes: number of processes.
        launcher: a configuration file of `accelerate launch`, or None.
        environ: environment variables to add.
        timeout: seconds for all trials together, or None.

    Returns:
        The outcome of each trial.
    """
    job = log.with_suffix(".json")
    job.parent.mkdir(parents=True, exist_ok=True)
    for trial in trials:
        trial.outcome.parent.mkdir(parents=True, exist_ok=True)
        trial.outcome.unlink(missing_ok=True)
    write_json(job, [asdict(trial) | {"outcome": str(trial.outcome.absolute())} for trial in trials])
    environ = {"TOKENIZERS_PARALLELISM": "false"} | dict(environ or {})
    code = run_processes([*WORKER, str(job.absolute())], processes, launcher, environ, log=log, timeout=timeout)
    outcomes = [_read(trial.outcome) for trial in trials]
    if any(outcome is not None and outcome.error for outcome in outcomes):
        return [outcome or Outcome(error="did not run: a trial before it failed") for outcome in outcomes]
    if None in outcomes:
        died = Outcome(error=_death(code, timeout, log), died=code)
        return [outcome or died for outcome in outcomes]
    if code:
        warn(f"all results are complete, but then {_death(code, timeout, log)}")
    return [outcome for outcome in outcomes if outcome is not None]


def run_processes(
    program: Sequence[str],
    processes: int = 1,
    launcher: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    log: Path | None = None,
    folder: Path | None = None,
    timeout: float | None = None,
) -> int:
    """Runs a Python program and waits until it ends.

    Its processes are killed when this process dies (on Linux), and have no standard input. They inherit the
    environment, offline mode included, except for variables that a launcher of this process has set.

    Args:
        program: a script, or `-m` and a module, and its arguments.
        processes: number of processes, which all print.
        launcher: a configuration file of `accelerate launch` to start them with, or None.
        environ: environment variables to add.
        log: file for the output, or None to print it.
        folder: working directory, or None for that of this process.
        timeout: seconds after which the processes are killed, or None.

    Returns:
        The exit code: negative for a signal, `EXIT_TIMEOUT` after a timeout.
    """
    command = [sys.executable, "-m", "toolkit.base.processes", *launch_command(processes, launcher), *program]
    with ExitStack() as files:
        output = None if log is None else files.enter_context(log.open("wb"))
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=inherited_environment() | dict(environ or {}),
                cwd=folder,
                timeout=timeout,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return EXIT_TIMEOUT


def inherited_environment() -> dict[str, str]:
    """Returns the environment variables that started processes inherit: all but those that a launcher has set."""
    return {
        name: value for name, value in os.environ.items() if name not in _OF_RANKS and not name.startswith(_LAUNCHERS)
    }


def launch_command(processes: int, launcher: Path | None) -> list[str]:
    """Returns the command that starts a Python program, without the program itself."""
    if launcher is not None:
        options = ["--config_file", str(launcher), "--num_processes", str(processes)]
        return [sys.executable, "-m", "accelerate.commands.launch", *options]
    if processes > 1:
        return [sys.executable, "-m", "toolkit.system.launcher", str(processes), sys.executable]
    return [sys.executable]


def _read(file: Path) -> Outcome | None:
    """Reads the outcome of a trial; None if its processes died before it was written completely."""
    try:
        return Outcome(**json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return None


def _death(code: int, timeout: float | None, log: Path) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if code == -9:
        how += " (out of memory?)"
    if code == EXIT_TIMEOUT and timeout is not None:
        how = f"did not end within {timeout:g} seconds"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    return "\n  ".join([f"its process {how}; the end of {log}:", *lines])

"""Starts the processes in which tools run their trainings, collects their results, and keeps finished ones."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.base.console import warn
from toolkit.base.errors import InputError
from toolkit.base.files import read_json, sha256, write_json
from toolkit.base.processes import OWN_LAUNCHER
from toolkit.base.run_folder import RunFolder
from toolkit.config import flatten
from toolkit.config.launcher import LAUNCHER
from toolkit.config.sections import Config
from toolkit.config.source import read_file
from toolkit.data.sources import fingerprint
from toolkit.recipe import launcher_file, load_settings
from toolkit.system.environment import hardware, versions

WORKER = ("-m", "toolkit.lab.worker")
EXIT_TIMEOUT = 124
"""Exit code of processes that were killed after the timeout, as with the command `timeout`."""
LOG_LINES = 15
"""Lines from the end of a log that an error shows."""
_LAUNCHERS = ("ACCELERATE_", "TORCHELASTIC_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "GROUP_", "ROLE_")
_OF_RANKS = {OWN_LAUNCHER, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Trial:
    """A call of a function in `toolkit.lab.worker.WORK`, in separate processes; `outcome` gets its result or error."""

    work: str
    arguments: Mapping[str, Any]
    outcome: Path


@dataclass(frozen=True)
class Outcome:
    """How a trial ended; `died` is the exit code of processes that ended without an error (negative for a signal)."""

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
    """Runs trials one after the other in one launch, and stops at the first that fails; returns the outcome of each.

    A result counts as soon as it is written, however the processes end afterwards; an unusual end is a warning. The
    trials are written beside the `log`, as `.json`, and have `timeout` seconds all together; see `run_processes`.
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
    return {k: v for k, v in os.environ.items() if k not in _OF_RANKS and not k.startswith(_LAUNCHERS)}


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


@dataclass(frozen=True)
class Launch:
    """How the processes of a run are started; `environ` are variables of the file that a run's settings depend on."""

    file: Path | None
    processes: int
    environ: Mapping[str, str]

    @staticmethod
    def of(file: str | None, processes: int | None) -> Launch:
        """Reads a launcher's file, given by its path or name; without one, this machine starts `processes` processes.

        Raises InputError if there is no such file, it cannot be read, is for several machines, or sets no number of
        processes.
        """
        if file is None:
            return Launch(None, processes or 1, {})
        found = launcher_file(file)
        values = read_file(found).values
        if "rdzv_backend" in values or values.get("num_machines", 1) != 1:
            raise InputError(f"--launch: {file} is for several machines, but this command starts its runs on one")
        count = processes or values.get("num_processes") or (1 if values.get("distributed_type") == "NO" else None)
        if count is None:
            raise InputError(f"--launch: {file} does not set num_processes; set --processes N")
        environ = {variable: str(values[name]) for name, (variable, *_) in LAUNCHER.items() if name in values}
        return Launch(found, int(count), environ)

    def check(self, needed: int) -> None:
        """Checks that there are at least `needed` processes and, on a machine with GPUs, one GPU for each process.

        Raises InputError if there are fewer, or the file is not for this machine.
        """
        import torch

        from toolkit.checks.machine import launcher_problems

        for problem in launcher_problems(self.file) if self.file is not None else ():
            raise InputError(f"--launch: {problem}")
        if self.processes < needed:
            raise InputError(f"{needed} processes are needed, received {self.processes}; set --processes {needed}")
        if self.file is None and 0 < torch.cuda.device_count() < self.processes:
            raise InputError(
                f"{self.processes} processes need as many GPUs, and this machine has {torch.cuda.device_count()}; set "
                "--launch cpu_2proc to use the CPU"
            )

    def load(self, task_type: type[Task], file: str, overrides: Sequence[str]) -> Config:
        """Returns the configuration that a run has if it is started in this way.

        Raises ConfigError if a setting is invalid.
        """
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
        return load_settings(task_type, file, overrides, environ={**environ, **self.environ}).config


def step_rows(cfg: Config, processes: int) -> int:
    """Returns the number of training rows per step, over all processes."""
    return cfg.train.rows_per_step(Mesh.of(cfg.parallel, processes).data_size)


def batch_and_accumulation(cfg: Config) -> tuple[int, int]:
    """Returns the rows of a micro-batch, and the micro-batches of a step on each process."""
    return cfg.train.micro_batch, cfg.train.accumulation


MEASURED = "measurement.json"
"""File of a training's measurements; written last, so a training with this file is complete."""
FAILED = "failure.json"
"""File of why a training failed, for other commands that share its comparison; a rerun removes it."""

digest_of = lru_cache(fingerprint)
"""Most trainings of a command have the same data files; each file is read once."""


def training_job(
    recipe: Path, config: Path, overrides: Sequence[str], cfg: Config, launch: Launch, code: str
) -> dict[str, Any]:
    """Returns everything that the results of a training depend on; `code` is a digest of the toolkit and the recipe."""
    data, places = cfg.data, ("output_dir", "offline_dir", "seed")
    return {
        "recipe": str(recipe.absolute()),
        "config": str(config.absolute()),
        "overrides": list(overrides),
        "settings": {key: value for key, value in flatten(cfg).items() if key not in places},
        "launch": None if launch.file is None else launch.file.read_text(encoding="utf-8"),
        "processes": launch.processes,
        "versions": versions(),
        "hardware": _kind_of_machine(),
        "code": code,
        "data": [digest_of(file) for file in data.files()],
        "model": model_files(cfg.model.name_or_path),
    }


def without_checkpoints(cfg: Config) -> list[str]:
    """Returns the override that omits checkpoints, unless they are needed to load the best model at the end."""
    return [] if cfg.checkpoint.load_best_model_at_end else ["checkpoint.save_steps=null"]


def remove_model(run: RunFolder) -> None:
    """Removes the model of a finished training; its results stay."""
    for folder in (run.model, run.base, run.processor, run.snapshots):
        shutil.rmtree(folder, ignore_errors=True)


def _kind_of_machine() -> dict[str, Any]:
    """Returns the hardware as far as equal machines have it; their memory, for instance, differs by some pages."""
    found = hardware()
    return {**found, "system": platform.system(), "memory_bytes": 2 ** round(math.log2(found["memory_bytes"]))}


def job_name(start: str, job: Mapping[str, Any]) -> str:
    """Returns the name of a training's folder.

    It ends with a digest of the job. So a finished training with the same job is not repeated, and one with another job
    is kept.
    """
    return f"{start}-{sha256(json.dumps(job, sort_keys=True))[:12]}"


def measured_in(folder: Path) -> dict[str, Any] | None:
    """Returns the measurements of a finished training; None if its folder has none."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
        return found
    return None


def failure_in(folder: Path) -> str | None:
    """Returns why a training failed; None if it did not, or has not ended."""
    with suppress(OSError, ValueError):
        return str(read_json(folder / FAILED)["error"])
    return None


def note_failure(folder: Path, error: str) -> None:
    """Writes why a training failed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FAILED, {"error": error})


def run_job(
    work: str,
    job: Mapping[str, Any],
    folder: Path,
    launch: Launch,
    further: Mapping[str, Any],
    noted: Callable[[], Mapping[str, Any]] = dict,
) -> str | None:
    """Runs a training in the subfolder `run` of its folder, which is emptied first, and removes its checkpoints.

    `work` is a function in `toolkit.lab.worker.WORK`, `further` its arguments that results do not depend on; `noted`
    returns what is added to the measurements at the end. Returns why it failed; None if it is finished.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run = RunFolder(folder / "run")
    arguments = {**job, **further, "overrides": [*job["overrides"], f"output_dir={run.path}"]}
    trial = Trial(work, arguments, folder / "outcome.json")
    log = folder.with_name(f"{folder.name}.log")
    (outcome,) = run_trials([trial], log, launch.processes, launch.file)
    if outcome.error is not None:
        note_failure(folder, outcome.error)
        return outcome.error
    trial.outcome.unlink()
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    write_json(folder / MEASURED, outcome.result | noted())
    return None


def model_files(name: str | None) -> list[list[Any]]:
    """Returns names, sizes and modification times of a local model's files; empty for a Hub id."""
    folder = Path(name) if name else None
    if folder is None or not folder.is_dir():
        return []
    stats = ((file, file.stat()) for file in sorted(folder.iterdir()) if file.is_file())
    return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]

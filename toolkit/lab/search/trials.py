"""Runs the process of a trial, and keeps the disk small: of trials that are over, only the best keep a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError
from toolkit.base.files import write_json
from toolkit.base.processes import STOP_SIGNALS
from toolkit.base.run_folder import RunFolder
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.lab.jobs.jobs import Trial as Job
from toolkit.lab.jobs.jobs import run_trials
from toolkit.lab.jobs.training import STEPS_ONLY
from toolkit.lab.search.storage import ENVIRON
from toolkit.lab.search.study import Result, Search
from toolkit.system.limits import threads_per_process

RESULT_FILE = "result.json"
"""File of how a trial ended; written before the study is told, so that what is over is never trained again."""
STOPPED = {code for number in STOP_SIGNALS for code in (-number, 128 + number)}
"""Exit codes of a process that a stop signal has ended."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def own_settings(cfg: Config) -> list[str]:
    """Returns the overrides that a search adds to all of its trials: they can go on, and report nowhere else."""
    quiet = {key: value for key, value in STEPS_ONLY.items() if key.startswith(("tracking.", "checkpoint.hub_"))}
    settings: dict[str, Any] = {
        **quiet,
        "checkpoint.push_to_hub": False,
        "checkpoint.resume": "auto",
        "checkpoint.save_total_limit": 1,
        "tracking.logging_steps": 1,  # whether the loss rose is read from the lines
    }
    if cfg.checkpoint.save_steps is None:  # the last step is scored later, from its checkpoint
        settings["checkpoint.save_steps"] = "epoch"
    return written(settings)


def job_of(search: Search, point: Sequence[str], run: Path) -> dict[str, Any]:
    """Returns the job of a process that trains a point.

    Args:
        search: the search.
        point: the overrides of the point.
        run: output folder of the run.
    """
    return {
        "recipe": str(search.recipe.absolute()),
        "config": str(search.config.absolute()),
        "overrides": [*search.overrides, *own_settings(search.base), *point, f"output_dir={run}"],
        "metric": search.metric.name,
        "deadline": search.deadline,
    }


def train(search: Search, job: Mapping[str, Any], folder: Path, slot: int) -> Result:
    """Trains in a process and waits for it.

    Args:
        search: the search.
        job: the job of `toolkit.lab.search.worker.train`.
        folder: folder of the trial, for its log and its result.
        slot: place among the trials that run at the same time, which have GPUs of their own.

    Returns:
        How it ended, with `seconds`: those of the processes of all sessions that ended.
    """
    before = read_result(folder)
    if before is not None and before["state"] != "stopped":
        return before
    began = time.monotonic()
    outcome = start("search", job, search, folder, slot)
    seconds = time.monotonic() - began + (before or {}).get("seconds", 0.0)
    if outcome.died in STOPPED:  # before it could save: the signal reaches it too, and it goes on when the search does
        found: Result = {"state": "stopped"}
    elif outcome.error is not None:
        found = {"state": "failed", "reason": outcome.error}
    else:
        found = outcome.result
    found = {**found, "seconds": round(seconds, 1)}
    write_json(folder / RESULT_FILE, found)
    return found


def start(work: str, job: Mapping[str, Any], search: Search, folder: Path, slot: int) -> Any:
    """Runs one job of `toolkit.lab.worker` and returns its `toolkit.lab.jobs.jobs.Outcome`."""
    launch = search.launch
    environ = {**launch.environ, **resources(slot, search.parallel, launch.processes)}
    if search.storage is not None:
        environ[ENVIRON] = search.storage
    task = Job(work, job, folder / "outcome.json")
    (outcome,) = run_trials([task], folder / f"{work}.log", launch.processes, launch.file, environ)
    task.outcome.unlink(missing_ok=True)
    return outcome


def read_result(folder: Path) -> Result | None:
    """Returns how a trial ended, or None if it has not."""
    with suppress(OSError, ValueError):
        found: Result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
        return found
    return None


def resources(slot: int, parallel: int, processes: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variables that give a trial its part of the machine.

    Args:
        slot: place of the trial, from 0.
        parallel: number of trials at the same time.
        processes: processes of a trial.
        environ: the environment.
    """
    if parallel == 1:
        return {}
    gpus = _gpus(environ)
    if gpus:
        return {VISIBLE: ",".join(gpus[slot * processes : (slot + 1) * processes])}
    if "OMP_NUM_THREADS" in environ:
        return {}
    return {"OMP_NUM_THREADS": str(threads_per_process(parallel * processes))}


def refuse_too_many(parallel: int, processes: int, environ: Mapping[str, str] = os.environ) -> None:
    """Refuses more trials at the same time than there are GPUs for them.

    Raises:
        InputError: if so.
    """
    gpus = len(_gpus(environ))
    if parallel > 1 and 0 < gpus < parallel * processes:
        raise InputError(
            f"--parallel: {parallel} trials of {processes} process{'es' if processes > 1 else ''} need "
            f"{parallel * processes} GPUs, and there are {gpus}; set --parallel {max(1, gpus // processes)}"
        )


def _gpus(environ: Mapping[str, str]) -> list[str]:
    if VISIBLE in environ:
        return [each for each in environ[VISIBLE].split(",") if each.strip()]
    import torch

    return list(map(str, range(torch.cuda.device_count())))


def lighten(folder: Path) -> None:
    """Removes the checkpoints and models of a trial that is over; what it logged stays."""
    run = RunFolder(folder / "run")
    for each in (run.checkpoints, run.model, run.base, run.snapshots, run.processor):
        shutil.rmtree(each, ignore_errors=True)

"""Trainings whose results are kept: a command that was stopped and is started again does only the rest of them."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolkit.base.files import read_json, write_json
from toolkit.base.run_folder import RunFolder
from toolkit.config import flatten
from toolkit.config.sections import Config
from toolkit.data.sources import fingerprint
from toolkit.lab.jobs.jobs import Trial, run_trials
from toolkit.lab.launch import Launch
from toolkit.system.environment import hardware, versions

MEASURED = "measurement.json"
"""File of a training's measurements; written last, so a training with this file is complete."""
FAILED = "failure.json"
"""File of why a training failed, for other commands that share its comparison; a rerun removes it."""

digest_of = lru_cache(fingerprint)
"""Most trainings of a command have the same data files; each file is read once."""


def training_job(
    recipe: Path, config: Path, overrides: Sequence[str], cfg: Config, launch: Launch, code: str
) -> dict[str, Any]:
    """Returns everything that the results of a training depend on.

    Args:
        recipe: the recipe's file.
        config: the YAML file.
        overrides: the overrides of the training, apart from its output folder.
        cfg: the configuration that it has with them.
        launch: how its processes are started.
        code: digest of the toolkit's and the recipe's code.
    """
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
        "data": [digest_of(file) for file in (data.train_file, data.validation_file, data.test_file) if file],
        "model": model_files(cfg.model.name_or_path),
    }


def _kind_of_machine() -> dict[str, Any]:
    """Returns the hardware as far as equal machines have it; their memory, for instance, differs by some pages."""
    found = hardware()
    return {**found, "system": platform.system(), "memory_bytes": 2 ** round(math.log2(found["memory_bytes"]))}


def job_name(start: str, job: Mapping[str, Any]) -> str:
    """Returns the name of a training's folder.

    It ends with a digest of the job. So a finished training with the same job is not repeated, and one with another job
    is kept.
    """
    return f"{start}-{hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:12]}"


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
    """Runs a training in processes of its own, in the subfolder `run` of its folder, and removes its checkpoints.

    Args:
        work: the function in `toolkit.lab.worker.WORK`.
        job: the job.
        folder: the training's folder, which is emptied first.
        launch: how processes are started.
        further: arguments of the function that results do not depend on.
        noted: returns what is added to the measurements when it has ended.

    Returns:
        Why it failed; None if it is finished.
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

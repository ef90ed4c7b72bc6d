"""Runs the variants, each run in a process of its own, in turn: A B C, A B C; what is finished stays finished."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from toolkit.base.environment import hardware, versions
from toolkit.base.files import write_json
from toolkit.base.run_folder import RunFolder
from toolkit.config import flatten
from toolkit.data.sources import fingerprint
from toolkit.lab.compare.checking import QUIET, Checked, Launch
from toolkit.lab.compare.variants import Variant
from toolkit.lab.compare.worker import FAILED, MEASURED

JOB = "job.json"
LOG_LINES = 12

digest_of = lru_cache(fingerprint)
"""Data files are the same for nearly all variants; each is read once."""


@dataclass(frozen=True)
class Comparison:
    """What is run.

    Args:
        recipe: the recipe's file.
        config: the YAML.
        overrides: settings of all variants.
        checked: the variants.
        launch: how processes are started.
        seeds: of the repeats; each variant runs with each.
        draws: sets that are drawn for the metric's interval.
        code: digest of the toolkit's and the recipe's code.
        folder: where everything goes.
    """

    recipe: Path
    config: Path
    overrides: Sequence[str]
    checked: Checked
    launch: Launch
    seeds: Sequence[int]
    draws: int
    code: str
    folder: Path


@dataclass
class Job:
    """One run of a variant, and how far it is; `seconds` is the time of its process."""

    variant: Variant
    seed: int
    state: Literal["waiting", "running", "done", "kept", "failed", "left out"] = "waiting"
    seconds: float = 0.0
    reason: str = ""
    measured: dict[str, Any] | None = None


def jobs_of(comparison: Comparison) -> list[Job]:
    """Returns all runs in the order in which they are done; those that are finished already are `kept`."""
    found = [Job(variant, seed) for seed in comparison.seeds for variant in comparison.checked.variants]
    for job in found:
        if job.variant.name in comparison.checked.refused:
            job.state, job.reason = "left out", "; ".join(comparison.checked.refused[job.variant.name])
        else:
            _take_finished(comparison, job)
    return found


def run_jobs(comparison: Comparison, jobs: Sequence[Job], changed: Callable[[], None]) -> None:
    """Runs what is waiting.

    Args:
        comparison: what is run.
        jobs: all runs; their states are changed.
        changed: called whenever one was.
    """
    failed: dict[str, str] = {}
    fine = {job.variant.name for job in jobs if job.state == "kept"}
    for job in jobs:
        if job.state != "waiting":
            continue
        if job.variant.name in failed and job.variant.name not in fine:  # most likely with another seed, too
            job.state, job.reason = "failed", failed[job.variant.name]
        else:
            job.state = "running"
            changed()
            began = time.monotonic()
            _run(comparison, job)
            job.seconds = time.monotonic() - began
            if job.reason:
                failed[job.variant.name] = job.reason
            else:
                fine.add(job.variant.name)
        changed()


def command_of(comparison: Comparison, variant: Variant) -> str:
    """Returns the command that trains a variant by itself."""
    start, launch = ["python"], comparison.launch
    if launch.file is not None:
        start = ["accelerate", "launch", "--config_file", str(launch.file), "--num_processes", str(launch.processes)]
    elif launch.processes > 1:
        start = ["torchrun", "--standalone", "--nproc_per_node", str(launch.processes)]
    settings = [*comparison.overrides, *variant.overrides]
    return shlex.join([*start, str(comparison.recipe), "--config", str(comparison.config), *settings])


def _work(comparison: Comparison, job: Job) -> dict[str, Any]:
    """Describes a run: what its process needs, and all that its figures depend on.

    Its folder is named after a digest of that, so a finished run of the same description need not be run again, and
    one of another description stays.
    """
    cfg = comparison.checked.configs[job.variant.name]
    data = cfg.data
    # Checkpoints are written only where the best model is asked for.
    saving = [] if cfg.checkpoint.load_best_model_at_end else ["checkpoint.save_steps=null"]
    places = ("output_dir", "seed")
    launch = comparison.launch
    work = {
        "recipe": str(comparison.recipe.absolute()),
        "config": str(comparison.config.absolute()),
        "overrides": [*comparison.overrides, *QUIET, *saving, *job.variant.overrides, f"seed={job.seed}"],
        "settings": {key: value for key, value in flatten(cfg).items() if key not in places},
        "launch": None if launch.file is None else launch.file.read_text(encoding="utf-8"),
        "processes": launch.processes,
        "draws": comparison.draws,
        "versions": versions(),
        "hardware": hardware(),
        "code": comparison.code,
        "data": [digest_of(file) for file in (data.train_file, data.validation_file, data.test_file) if file],
        "model": _model_files(cfg.model.name_or_path),
    }
    digest = hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:12]
    folder = comparison.folder / "runs" / job.variant.slug / f"seed-{job.seed}-{digest}"
    return {**work, "folder": str(folder)}


def _model_files(name: str | None) -> list[list[Any]]:
    """Sizes and times of a local model's files; what a hub id stands for is pinned by its revision, or not."""
    folder = Path(name) if name else None
    if folder is None or not folder.is_dir():
        return []
    stats = ((file, file.stat()) for file in sorted(folder.iterdir()) if file.is_file())
    return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def _take_finished(comparison: Comparison, job: Job) -> None:
    with suppress(OSError, ValueError):
        file = Path(_work(comparison, job)["folder"]) / MEASURED
        job.state, job.measured = "kept", json.loads(file.read_text(encoding="utf-8"))


def _run(comparison: Comparison, job: Job) -> None:
    """Runs one job; its folder gets its name when all is in it."""
    work = _work(comparison, job)
    final = Path(work["folder"])
    folder, log = final.with_name(f"{final.name}.part"), final.with_name(f"{final.name}.log")
    for old in (final, folder):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    overrides = [*work["overrides"], f"output_dir={folder / 'run'}"]
    write_json(folder / JOB, {**work, "folder": str(folder), "overrides": overrides})
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    environ["TOKENIZERS_PARALLELISM"] = "false"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "toolkit.base.processes", *_start(comparison.launch), str(folder / JOB)]
        done = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environ, check=False)
    if done.returncode or not (folder / MEASURED).exists():
        job.state, job.reason = "failed", _reason(folder, log, done.returncode)
        return
    shutil.rmtree(RunFolder(folder / "run").checkpoints, ignore_errors=True)
    folder.rename(final)
    job.state, job.measured = "done", json.loads((final / MEASURED).read_text(encoding="utf-8"))


def _start(launch: Launch) -> Iterator[str]:
    """Yields the command that starts a worker, without its argument."""
    yield sys.executable
    if launch.file is not None:
        yield from ("-m", "accelerate.commands.launch", "--config_file", str(launch.file))
        yield from ("--num_processes", str(launch.processes))
    elif launch.processes > 1:
        yield from ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(launch.processes))
    yield from ("-m", "toolkit.lab.compare.worker")


def _reason(folder: Path, log: Path, code: int) -> str:
    """Says why a run failed: in its own words, or with the end of what it printed."""
    if (folder / FAILED).exists():
        return (folder / FAILED).read_text(encoding="utf-8").strip()
    end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
    died = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"its process ended with {died}{hint}; the end of {log}:\n{end}"

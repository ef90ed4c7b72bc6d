"""Runs the variants in turn (A B C, A B C), each run in its own process; finished runs are not repeated."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from toolkit.lab.jobs import Trial, run_trials

MEASURED = "measurement.json"

digest_of = lru_cache(fingerprint)
"""Most variants have the same data files; each file is read once."""


@dataclass(frozen=True)
class Comparison:
    """The variants to run, and how.

    Args:
        recipe: the recipe's file.
        config: the YAML file.
        overrides: overrides for all variants.
        checked: the variants.
        launch: how processes are started.
        seeds: each variant runs once with each of these seeds.
        draws: number of bootstrap sets for the metric's interval.
        code: digest of the toolkit's and the recipe's code.
        folder: output folder.
        estimates: estimates of the variants by name, if they are parallel strategies.
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
    estimates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class Repeat:
    """The run of a variant with one seed, and its state; `seconds` is the time of its process."""

    variant: Variant
    seed: int
    state: Literal["waiting", "running", "done", "kept", "failed", "left out"] = "waiting"
    seconds: float = 0.0
    reason: str = ""
    measured: dict[str, Any] | None = None


def repeats_of(comparison: Comparison) -> list[Repeat]:
    """Returns all runs in the order in which they run; those that an earlier comparison finished are `kept`."""
    repeats = [Repeat(variant, seed) for seed in comparison.seeds for variant in comparison.checked.variants]
    for repeat in repeats:
        if repeat.variant.name in comparison.checked.refused:
            repeat.state, repeat.reason = "left out", "; ".join(comparison.checked.refused[repeat.variant.name])
        else:
            _load_finished(comparison, repeat)
    return repeats


def run_repeats(comparison: Comparison, repeats: Sequence[Repeat], changed: Callable[[], None]) -> None:
    """Runs everything that is waiting.

    Args:
        comparison: the comparison.
        repeats: all runs; their states are updated.
        changed: called after each change of a state.
    """
    failed: dict[str, str] = {}
    succeeded = {repeat.variant.name for repeat in repeats if repeat.state == "kept"}
    for repeat in repeats:
        name = repeat.variant.name
        if repeat.state != "waiting":
            continue
        if name in failed and name not in succeeded:  # it would most likely fail with other seeds too
            repeat.state, repeat.reason = "failed", failed[name]
        else:
            repeat.state = "running"
            changed()
            began = time.monotonic()
            _run(comparison, repeat)
            repeat.seconds = time.monotonic() - began
            if repeat.reason:
                failed[name] = repeat.reason
            else:
                succeeded.add(name)
        changed()


def command_of(comparison: Comparison, variant: Variant) -> str:
    """Returns the command that trains a variant by itself."""
    start, launch = ["python"], comparison.launch
    processes = variant.technique.processes if variant.technique else launch.processes
    if launch.file is not None:
        start = ["accelerate", "launch", "--config_file", str(launch.file), "--num_processes", str(processes)]
    elif processes > 1:
        start = ["torchrun", "--standalone", "--nproc_per_node", str(processes)]
    settings = [*comparison.overrides, *variant.overrides]
    return shlex.join([*start, str(comparison.recipe), "--config", str(comparison.config), *settings])


def _work(comparison: Comparison, repeat: Repeat) -> dict[str, Any]:
    """Returns the job of a run, with everything that its results depend on.

    The run's folder is named after a digest of the job. So a finished run with the same job is not repeated, and one
    with another job is kept.
    """
    cfg = comparison.checked.configs[repeat.variant.name]
    data = cfg.data
    # Checkpoints are needed only to load the best model at the end.
    saving = [] if cfg.checkpoint.load_best_model_at_end else ["checkpoint.save_steps=null"]
    places = ("output_dir", "seed")
    launch = comparison.launch
    work = {
        "recipe": str(comparison.recipe.absolute()),
        "config": str(comparison.config.absolute()),
        "overrides": [*comparison.overrides, *QUIET, *saving, *repeat.variant.overrides, f"seed={repeat.seed}"],
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
    folder = comparison.folder / "runs" / repeat.variant.slug / f"seed-{repeat.seed}-{digest}"
    return {**work, "folder": str(folder)}


def _model_files(name: str | None) -> list[list[Any]]:
    """Returns names, sizes and modification times of a local model's files; empty for a Hub id."""
    folder = Path(name) if name else None
    if folder is None or not folder.is_dir():
        return []
    stats = ((file, file.stat()) for file in sorted(folder.iterdir()) if file.is_file())
    return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def _load_finished(comparison: Comparison, repeat: Repeat) -> None:
    with suppress(OSError, ValueError):
        file = Path(_work(comparison, repeat)["folder"]) / MEASURED
        repeat.measured = json.loads(file.read_text(encoding="utf-8"))
        repeat.state = "kept"


def _run(comparison: Comparison, repeat: Repeat) -> None:
    """Runs one repeat; its folder gets its final name when it is complete."""
    work = _work(comparison, repeat)
    final = Path(work["folder"])
    folder = final.with_name(f"{final.name}.part")
    for old in (final, folder):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    job = {**work, "overrides": [*work["overrides"], f"output_dir={folder / 'run'}"]}
    trial, launch = Trial("compare", job, folder / "outcome.json"), comparison.launch
    (outcome,) = run_trials([trial], final.with_name(f"{final.name}.log"), launch.processes, launch.file)
    if outcome.error is not None:
        repeat.state, repeat.reason = "failed", outcome.error
        return
    trial.outcome.unlink()
    write_json(folder / MEASURED, outcome.result)
    shutil.rmtree(RunFolder(folder / "run").checkpoints, ignore_errors=True)
    folder.rename(final)
    repeat.measured = json.loads((final / MEASURED).read_text(encoding="utf-8"))
    repeat.state = "done"

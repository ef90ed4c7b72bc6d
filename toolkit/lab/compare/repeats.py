"""The runs of a comparison: which there are, what their results depend on, and where their files are."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from toolkit.base.environment import hardware, versions
from toolkit.base.run_folder import RunFolder
from toolkit.config import flatten
from toolkit.data.sources import fingerprint
from toolkit.lab.compare.checking import QUIET, Checked
from toolkit.lab.compare.variants import Variant
from toolkit.lab.launch import Launch
from toolkit.metrics.score import Score

MEASURED = "measurement.json"
"""File of a run's measurements; written last, so a run with this file is complete."""

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
        draws: number of bootstrap sets for the intervals of metrics.
        code: digest of the toolkit's and the recipe's code.
        folder: output folder.
        metric: the main metric, with its prefix.
        keep_best: whether to keep the model of the best run.
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
    metric: Score
    keep_best: bool = False
    estimates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class Repeat:
    """The run of a variant with one seed, and its state; `seconds` is the time of its process."""

    variant: Variant
    seed: int
    state: Literal["waiting", "running", "done", "kept", "failed", "skipped"] = "waiting"
    seconds: float = 0.0
    reason: str = ""
    measured: dict[str, Any] | None = None

    def score(self, metric: Score) -> float | None:
        """Returns the value of a metric; None if the run has none."""
        return None if self.measured is None else self.measured["figures"].get(metric.name)


def repeats_of(comparison: Comparison) -> list[Repeat]:
    """Returns all runs in the order in which they run; those that an earlier comparison finished are `kept`."""
    repeats = [Repeat(variant, seed) for seed in comparison.seeds for variant in comparison.checked.variants]
    for repeat in repeats:
        if repeat.variant.name in comparison.checked.refused:
            repeat.state, repeat.reason = "skipped", "; ".join(comparison.checked.refused[repeat.variant.name])
        else:
            _load_finished(comparison, repeat)
    return repeats


def command_of(comparison: Comparison, variant: Variant) -> str:
    """Returns the command that trains a variant by itself."""
    start, launch = ["toolkit", "train"], comparison.launch
    processes = variant.technique.processes if variant.technique else launch.processes
    run = [str(comparison.recipe), "--config", str(comparison.config)]
    if launch.file is not None:
        start = ["accelerate", "launch", "--config_file", str(launch.file), "--num_processes", str(processes)]
    elif processes > 1:
        run += ["--processes", str(processes)]
    return shlex.join([*start, *run, *comparison.overrides, *variant.overrides])


def folder_of(comparison: Comparison, repeat: Repeat) -> Path:
    """Returns the folder of a run.

    It is named after a digest of the job. So a finished run with the same job is not repeated, and one with another job
    is kept.
    """
    digest = hashlib.sha256(json.dumps(job_of(comparison, repeat), sort_keys=True).encode()).hexdigest()[:12]
    return comparison.folder / "runs" / repeat.variant.slug / f"seed-{repeat.seed}-{digest}"


def trained_run(comparison: Comparison, repeat: Repeat) -> RunFolder:
    """Returns the output folder of the training of a run."""
    return RunFolder(folder_of(comparison, repeat) / "run")


def job_of(comparison: Comparison, repeat: Repeat) -> dict[str, Any]:
    """Returns the job of a run: everything that its results depend on."""
    cfg = comparison.checked.configs[repeat.variant.name]
    data = cfg.data
    # Checkpoints are needed only to load the best model at the end.
    saving = [] if cfg.checkpoint.load_best_model_at_end else ["checkpoint.save_steps=null"]
    places = ("output_dir", "seed")
    launch = comparison.launch
    return {
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
        "model": model_files(cfg.model.name_or_path),
    }


def model_files(name: str | None) -> list[list[Any]]:
    """Returns names, sizes and modification times of a local model's files; empty for a Hub id."""
    folder = Path(name) if name else None
    if folder is None or not folder.is_dir():
        return []
    stats = ((file, file.stat()) for file in sorted(folder.iterdir()) if file.is_file())
    return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def _load_finished(comparison: Comparison, repeat: Repeat) -> None:
    with suppress(OSError, ValueError):
        file = folder_of(comparison, repeat) / MEASURED
        repeat.measured = json.loads(file.read_text(encoding="utf-8"))
        repeat.state = "kept"

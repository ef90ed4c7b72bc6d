"""The runs of a comparison: which there are, what their results depend on, and where their files are."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolkit.base.run_folder import RunFolder
from toolkit.lab.compare.checking import QUIET, Checked
from toolkit.lab.compare.variants import Variant
from toolkit.lab.finished import failure_in, job_name, measured_in, training_job
from toolkit.lab.launch import Launch
from toolkit.metrics.score import Score


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


def repeats_of(comparison: Comparison, failures: bool = False) -> list[Repeat]:
    """Returns all runs in the order in which they run; those that an earlier comparison finished are `kept`.

    Args:
        comparison: the comparison.
        failures: whether runs that have failed are `failed`; otherwise they are `waiting`, to be tried again.
    """
    repeats = [Repeat(variant, seed) for seed in comparison.seeds for variant in comparison.checked.variants]
    for repeat in repeats:
        if repeat.variant.name in comparison.checked.refused:
            repeat.state, repeat.reason = "skipped", "; ".join(comparison.checked.refused[repeat.variant.name])
        else:
            _load_finished(comparison, repeat, failures)
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
    """Returns the folder of a run, which is named after its job; see `toolkit.lab.finished.job_name`."""
    name = job_name(f"seed-{repeat.seed}", job_of(comparison, repeat))
    return comparison.folder / "runs" / repeat.variant.slug / name


def trained_run(comparison: Comparison, repeat: Repeat) -> RunFolder:
    """Returns the output folder of the training of a run."""
    return RunFolder(folder_of(comparison, repeat) / "run")


def job_of(comparison: Comparison, repeat: Repeat) -> dict[str, Any]:
    """Returns the job of a run: everything that its results depend on."""
    cfg = comparison.checked.configs[repeat.variant.name]
    # Checkpoints are needed only to load the best model at the end.
    saving = [] if cfg.checkpoint.load_best_model_at_end else ["checkpoint.save_steps=null"]
    overrides = [*comparison.overrides, *QUIET, *saving, *repeat.variant.overrides, f"seed={repeat.seed}"]
    job = training_job(comparison.recipe, comparison.config, overrides, cfg, comparison.launch, comparison.code)
    return job | {"draws": comparison.draws}


def _load_finished(comparison: Comparison, repeat: Repeat, failures: bool) -> None:
    folder = folder_of(comparison, repeat)
    if (measured := measured_in(folder)) is not None:
        repeat.measured, repeat.state = measured, "kept"
    elif failures and (reason := failure_in(folder)) is not None:
        repeat.state, repeat.reason = "failed", reason

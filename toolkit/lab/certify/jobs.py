"""Trainings of a cut of the rows, run in worker processes on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from toolkit.base.errors import RunError
from toolkit.config.overrides import written
from toolkit.config.sections import Config, TrainConfig

WINDOW = 8
"""Rows of one optimizer step in every job."""
SPLIT = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 4}
"""The window on one process, where nothing else is asked for."""
LOG_LINES = 25
LEFT_OUT = (
    "early_stopping_patience",
    "early_stopping_threshold",
    "max_time",
    "snapshot_ensemble",
    # Another algorithm; what is proved is the synchronous one.
    "strategy",
    *(f"local_sgd_{name}" for name in ("steps", "warmup_steps", "average_moments", "outer_lr", "outer_momentum")),
    # For GPUs, or equal to rounding only.
    "tf32",
    "activation_offload",
    "torch_compile",
    "torch_compile_backend",
    "torch_compile_mode",
)
"""Settings of training that a certificate's runs have at their defaults."""

OF_OPTIMIZERS = (
    "optim_args",
    "layerwise_lr_decay",
    "head_learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lr_scheduler_kwargs",
    "warmup_steps",
)
STILL: dict[str, Any] = {
    "engine": "loop",
    "train.optim": "sgd",
    "train.learning_rate": 0.0,
    **{f"train.{name}": getattr(TrainConfig(), name) for name in OF_OPTIMIZERS},
    "train.lr_scheduler_type": "constant",
    "train.num_train_epochs": 1,
    "checkpoint.save_steps": None,
}
"""Settings of a run that changes no parameter."""


@dataclass(frozen=True)
class Cut:
    """What the jobs of all certificates share.

    Args:
        recipe: the recipe's file.
        config: the YAML.
        overrides: a person's own.
        cfg: what YAML and overrides resolve to.
        rows: training rows, and most validation rows.
        kill_at: the step at whose end a run is killed, or None.
        kill_after: instead, the epochs after which it is.
    """

    recipe: str
    config: str
    overrides: Sequence[str]
    cfg: Config
    rows: int
    kill_at: int | None
    kill_after: float

    @property
    def evaluated(self) -> bool:
        """Whether there are rows besides those for training."""
        data = self.cfg.data
        return bool(data.validation_split != 0 or data.validation_file or data.test_file or data.dataset_name)

    def settings(self) -> list[str]:
        """Returns the overrides that make a small run of the person's own: two epochs, nothing but what is compared."""
        train, data = self.cfg.train, self.cfg.data
        settings: dict[str, Any] = {
            "data.max_train_samples": self.rows,
            "train.num_train_epochs": 2,
            "train.max_steps": -1,
            "train.mixed_precision": "no",  # bits, and metrics to 1e-5, are promised for float32
            **SPLIT,
            **{f"train.{name}": getattr(TrainConfig(), name) for name in LEFT_OUT},
            "model.attn_implementation": None,
            "eval.eval_steps": 2 if train.lr_scheduler_type == "reduce_lr_on_plateau" else None,
            "checkpoint.save_steps": 2,
            "checkpoint.save_total_limit": None,
            "checkpoint.resume": "none",
            "checkpoint.load_best_model_at_end": False,
            "tracking.logging_steps": 1,
            "tracking.report_to": [],
            "tracking.run_name": None,
            "tracking.project": "finetune-toolkit",
            "checkpoint.push_to_hub": False,
            **dict.fromkeys(f"checkpoint.hub_{name}" for name in ("model_id", "private_repo", "revision")),
            "trainer.callbacks": [],  # which might do anything
            "trainer.args": {},
        }
        if self.evaluated and (data.max_eval_samples is None or data.max_eval_samples > self.rows):
            settings["data.max_eval_samples"] = self.rows
        if train.warmup_steps >= 1:  # the small run would be over before
            settings["train.warmup_steps"] = 0.1
        return [*self.overrides, *written(settings)]


@dataclass(frozen=True)
class Job:
    """One run.

    Args:
        name: of its folder; jobs of the same name are one.
        settings: dotted keys and values on top of the cut's.
        processes: how many run it.
        plain: train with the plain `transformers.Trainer` instead, for one step.
        still: without dropout and whatever else draws numbers in the model.
        gradients: whether gradients are kept.
        killed: whether the process kills itself with SIGKILL, where the cut says.
        model_of: name of the job whose model it starts from.
        goes_on: name of the job in whose folder it goes on.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 1
    plain: bool = False
    still: bool = False
    gradients: bool = False
    killed: bool = False
    model_of: str | None = None
    goes_on: str | None = None


def run_jobs(jobs: Sequence[Job], cut: Cut, folder: Path) -> None:
    """Runs jobs, as many as possible in one launch; a job that fails leaves `error.txt` in its folder.

    Raises:
        RunError: if a worker ends without saying why.
    """
    unique = list({job.name: job for job in jobs}.values())
    # Those that are killed come first, since others go on from them, and each has a process of its own.
    order = sorted(unique, key=lambda job: (not job.killed, job.processes, job.model_of is not None))
    for (_, processes), group in groupby(order, key=lambda job: (job.killed, job.processes)):
        _launch(list(group), cut, folder, processes)


def _launch(jobs: Sequence[Job], cut: Cut, folder: Path, processes: int) -> None:
    name = jobs[0].name if len(jobs) == 1 else f"{processes}-process{'es' if processes > 1 else ''}"
    work = folder / f"{name}.json"
    work.write_text(
        json.dumps(
            {
                "recipe": cut.recipe,
                "config": cut.config,
                "folder": str(folder),
                "kill_at": cut.kill_at,
                "kill_after": cut.kill_after,
                "jobs": [asdict(job) | {"overrides": [*cut.settings(), *written(job.settings)]} for job in jobs],
            }
        )
    )
    module = ["-m", "toolkit.lab.certify.worker", str(work)]
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        command = [sys.executable, *(several if processes > 1 else []), *module]
        done = subprocess.run(command, stdout=output, stderr=output, env=environ, check=False)
    expected = -signal.SIGKILL if jobs[0].killed else 0
    if done.returncode != expected and not any((folder / job.name / "error.txt").exists() for job in jobs):
        end = "\n  ".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        raise RunError(f"a worker ended with exit code {done.returncode}; the end of {log}:\n  {end}")


def error_of(folder: Path, *names: str) -> str | None:
    """Returns how the first of some jobs failed, or None if none did."""
    for name in names:
        file = folder / name / "error.txt"
        if file.exists():
            return f"the run {name} failed: {file.read_text()}"
        if not (folder / name).is_dir():
            return f"the run {name} did not take place, since one before it failed"
    return None

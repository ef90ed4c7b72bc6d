"""Runs the small trainings that certificates compare: on a few of your rows, on the CPU, in separate processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from toolkit.base.errors import ConfigError, RunError, problems_of
from toolkit.checks.run import check_launch
from toolkit.config.keys import written
from toolkit.config.sections import Config, TrainConfig
from toolkit.config.train import ParallelConfig
from toolkit.lab.jobs.jobs import Trial, inherited_environment, run_trials
from toolkit.lab.jobs.training import QUIET
from toolkit.recipe import load_settings, load_task_type

WINDOW = 8
"""Rows of one optimizer step in every training."""
SPLIT = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 4}
"""How the window is split by default, on one process."""
ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
RESET = (
    "global_batch_size",
    "early_stopping_patience",
    "early_stopping_threshold",
    "max_time",
    "snapshot_ensemble",
    # The promises are about synchronous training.
    "strategy",
    *(f"local_sgd_{name}" for name in ("steps", "warmup_steps", "average_moments", "outer_lr", "outer_momentum")),
    "ddp_comm_hook",
    "power_sgd_rank",
    # These need a GPU, or change results within rounding.
    "activation_compression",
    "tf32",
    "activation_offload",
    "torch_compile",
    "torch_compile_backend",
    "torch_compile_mode",
)
"""Settings in the section `train` that certificates reset to their defaults."""

OF_OPTIMIZERS = (
    "optim_args", "layerwise_lr_decay", "head_learning_rate", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "lr_scheduler_kwargs", "warmup_steps",
)  # fmt: skip
"""Settings in the section `train` that a run without updates resets to their defaults."""
NO_UPDATE: dict[str, Any] = {
    "engine": "loop",
    "train.optim": "sgd",
    "train.learning_rate": 0.0,
    **{f"train.{name}": getattr(TrainConfig(), name) for name in OF_OPTIMIZERS},
    "train.lr_scheduler_type": "constant",
    "train.num_train_epochs": 1,
    "checkpoint.save_steps": None,
    "model.unfreeze": {},
}
"""Settings of a run that does not change any parameter."""


@dataclass(frozen=True)
class Experiment:
    """The inputs that the trainings of all certificates share."""

    recipe: str  # the recipe's file
    config: str  # the YAML file
    overrides: Sequence[str]  # overrides from the command line
    cfg: Config  # the configuration that file and overrides give
    rows: int  # number of training rows, and maximum number of validation rows
    kill_at: int | None  # the step at whose end a run is killed, or None
    kill_after: float  # if `kill_at` is None, the number of epochs after which a run is killed
    strategies: Sequence[str] = ()  # strategies to compare with one process, as on the command line (`fsdp=2`)

    @property
    def evaluated(self) -> bool:
        """Whether there are rows to evaluate."""
        data = self.cfg.data
        given = data.validation_file or data.test_file or data.dataset_name
        return bool(data.validation_split != 0 or data.test_split or given)

    @property
    def own_forward(self) -> bool:
        """Whether the task has a forward pass of its own, which the plain Trainer does not have."""
        return load_task_type(self.recipe)(self.cfg).has("forward")

    def settings(self) -> list[str]:
        """Returns the overrides that reduce the user's run to two epochs on `rows` rows, without side effects."""
        train, data = self.cfg.train, self.cfg.data
        settings: dict[str, Any] = {
            **QUIET,
            **{f"parallel.{field.name}": field.default for field in fields(ParallelConfig)},
            "data.max_train_samples": self.rows,
            "data.train_fraction": 1.0,
            "train.num_train_epochs": 2,
            "train.max_steps": -1,
            "train.mixed_precision": "no",  # the promises hold in float32
            **SPLIT,
            **{f"train.{name}": getattr(TrainConfig(), name) for name in RESET},
            "model.attn_implementation": None,
            "eval.eval_steps": 2 if train.lr_scheduler_type == "reduce_lr_on_plateau" else None,
            "checkpoint.save_steps": 2,
            "checkpoint.save_total_limit": None,
            "checkpoint.load_best_model_at_end": False,
            "tracking.logging_steps": 1,
            "trainer.callbacks": [],  # they may do anything
            "trainer.args": {},
        }
        if self.evaluated and (data.max_eval_samples is None or data.max_eval_samples > self.rows):
            settings["data.max_eval_samples"] = self.rows
        if isinstance(train.warmup_steps, str) or train.warmup_steps >= 1:  # the small run could end before the warm-up
            settings["train.warmup_steps"] = 0.1
        return [*self.overrides, *written(settings)]


@dataclass(frozen=True)
class Training:
    """One of the runs that certificates compare."""

    name: str  # name of its folder; trainings with the same name run once
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys and values to add to the experiment's
    processes: int = 1  # number of processes
    plain: bool = False  # whether to train one step with the plain `transformers.Trainer`
    no_dropout: bool = False  # whether to disable dropout, and everything else in the model that draws random numbers
    gradients: bool = False  # whether to record gradients
    killed: bool = False  # whether the process kills itself with SIGKILL, at the time that the experiment gives
    model_of: str | None = None  # name of the training whose model it starts from
    resumes: str | None = None  # name of the training in whose folder it resumes
    float64: bool = False  # whether it computes in float64
    max_layers: int | None = None  # number of layers that a larger model is reduced to, or None
    # name and step of the checkpoint of another training from which it starts, in its own folder
    checkpoint_of: tuple[str, int] | None = None


def check_trainings(trainings: Sequence[Training], experiment: Experiment) -> None:
    """Raises ConfigError with all problems of the trainings, except those that start from the model of another one."""
    task_type = load_task_type(experiment.recipe)
    environ = {**inherited_environment(), **ON_CPU}

    def check(overrides: Sequence[str], processes: int) -> None:
        cfg = load_settings(task_type, experiment.config, overrides, environ).config
        check_launch(cfg, task_type, processes)

    distinct = dict.fromkeys(
        (tuple(_overrides(training, experiment)), training.processes)
        for training in trainings
        if training.model_of is None
    )
    if problems := [problem for each in distinct for problem in problems_of(partial(check, *each))]:
        raise ConfigError(list(dict.fromkeys(problems)))


def run_trainings(trainings: Sequence[Training], experiment: Experiment, folder: Path) -> None:
    """Runs trainings, as many as possible in one launch; `error_of` returns the errors of those that failed."""
    unique = list({training.name: training for training in trainings}.values())
    # Killed trainings run first, since others resume them, and each in its own process.
    order = sorted(unique, key=_launch_of)
    for (alive, resuming, processes), group in groupby(order, key=lambda each: _launch_of(each)[:3]):
        launch = list(group)
        several = f"{processes}-process{'es' if processes > 1 else ''}{'-resumed' if resuming else ''}"
        name = launch[0].name if len(launch) == 1 else several
        trials = [_trial(training, experiment, folder) for training in launch]
        for outcome in run_trials(trials, folder / f"{name}.log", processes, environ=ON_CPU):
            if outcome.died is not None and (alive or outcome.died != -signal.SIGKILL):
                raise RunError(f"certify: {outcome.error}")


def _launch_of(training: Training) -> tuple[bool, bool, int, bool]:
    """Returns the sort key of a training; those with the same key, except for the last part, share a launch."""
    return not training.killed, training.checkpoint_of is not None, training.processes, training.model_of is not None


def _overrides(training: Training, experiment: Experiment) -> list[str]:
    return [*experiment.settings(), *written(training.settings)]


def _trial(training: Training, experiment: Experiment, folder: Path) -> Trial:
    arguments = {
        "recipe": experiment.recipe,
        "config": experiment.config,
        "overrides": _overrides(training, experiment),
        "folder": str(folder),
        "kill": [experiment.kill_at, experiment.kill_after] if training.killed else None,
        **{name: value for name, value in asdict(training).items() if name not in ("settings", "processes", "killed")},
    }
    return Trial("certify", arguments, outcome_file(folder, training.name))


def outcome_file(folder: Path, name: str) -> Path:
    """Returns the path of the file with a training's outcome, which is outside the folder of its run."""
    return folder / f"{name}.outcome.json"


def error_of(folder: Path, *names: str) -> str | None:
    """Returns the error of the first training in `names` that failed, or None if none did."""
    for name in names:
        file = outcome_file(folder, name)
        if file.exists() and (error := json.loads(file.read_text(encoding="utf-8")).get("error")):
            return f"the run {name} failed: {error}"
        if not (folder / name).is_dir():
            return f"the run {name} did not start, because a run before it failed"
    return None

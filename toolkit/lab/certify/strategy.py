"""Certificate `strategy`: processes that share a model train it like one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from toolkit.api.mesh import SIZES
from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.base.run_folder import RunFolder
from toolkit.checks.check import Case
from toolkit.checks.model import expert_problems
from toolkit.checks.rules import RULES
from toolkit.config.messages import did_you_mean
from toolkit.config.paths import source_of
from toolkit.config.problems import Rule
from toolkit.config.sections import Config, TrainConfig
from toolkit.config.train import ParallelConfig
from toolkit.distributed.pipeline.partition import stage_problems
from toolkit.distributed.tensor.plans import plan_problems
from toolkit.lab.certify.certificate import FAILED, OK, Certificate
from toolkit.lab.certify.trainings import NO_UPDATE, WINDOW, Experiment, Training, error_of
from toolkit.models.load import load_model_config
from toolkit.tracking.jsonl import read_metrics

PROMISE = "Processes that share a model train it like one process, and one process resumes their checkpoints."
NOT_CERTIFIED = ("strategy", "auto_batch_size", "torch_compile", "snapshot_ensemble")
"""Settings in the section `train` that the runs of this certificate reset."""
REFERENCE = "one-process"
STEPS, SAVED = 3, 2
"""Steps of each run, and the step whose checkpoint is resumed on one process."""
CLOSE, CLOSE_PARAMETERS = 1e-10, 1e-9
"""Largest relative difference of losses and norms, and largest difference of a parameter; the runs are in float64."""


def parse(text: str) -> dict[str, int | str]:
    """Reads a strategy of the command line, for instance `fsdp=2` or `replicas=2,tensor=2`.

    Raises InputError if it is not a list of settings of the section `parallel`.
    """
    known = [field.name for field in fields(ParallelConfig)]
    found: dict[str, int | str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in known:
            meant = did_you_mean(name, known)
            raise InputError(f"--strategy: received {text!r}, but {name!r} is not a setting of parallel{meant}")
        if not value:
            raise InputError(f"--strategy: received {text!r}, but {name} needs a value, for instance {name}=2")
        found[name] = int(value) if value.isdecimal() else value
    return found


def strategies_of(cfg: Config, task: Task) -> list[str]:
    """Returns the strategies on two processes that a model, its task and its optimizer allow."""
    reset: dict[str, Any] = {name: getattr(TrainConfig(), name) for name in NOT_CERTIFIED}
    train = replace(cfg.train, **reset, mixed_precision="no", gradient_accumulation_steps=WINDOW)

    def excluded(**settings: Any) -> set[Rule]:
        changed = replace(cfg, train=train, parallel=ParallelConfig(**settings))
        return {rule for rule in RULES if rule.launcher is None and rule.when(changed)}

    config = load_model_config(source_of(cfg))
    found = ["fsdp=2", "zero_stage=1"]
    found += [] if plan_problems(config, 2) else ["tensor=2"]
    case = Case(replace(cfg, parallel=ParallelConfig(expert=2)), type(task))
    found += [] if expert_problems(case) else ["expert=2"]
    found += [] if task.has("forward") or stage_problems(config, 2, 1) else ["pipeline=2"]
    without = excluded()
    return [text for text in found if excluded(**parse(text)) <= without]


def processes_of(settings: Mapping[str, int | str]) -> int:
    """Returns the number of processes of a strategy; ZeRO alone gets two, and experts as many as split them."""
    sizes = [size for name, size in settings.items() if name in SIZES and isinstance(size, int)]
    return max(prod(sizes), int(settings.get("expert", 1)), 2 if "zero_stage" in settings else 1)


def trainings(experiment: Experiment) -> list[Training]:
    """Returns a run on one process, and for each strategy a run and one that resumes its checkpoint on one process."""
    common: dict[str, Any] = {
        "engine": "loop",
        "train.max_steps": STEPS,
        "checkpoint.save_steps": SAVED,
        "train.auto_batch_size": False,
        "model.unfreeze": NO_UPDATE["model.unfreeze"],
    }
    stages = max((int(parse(text).get("pipeline", 1)) for text in experiment.strategies), default=1)
    options: dict[str, Any] = {"no_dropout": True, "float64": True, "max_layers": max(2, stages)}
    made = [Training(REFERENCE, common, **options)]
    for text in experiment.strategies:
        settings, processes = parse(text), processes_of(parse(text))
        split = processes // prod(int(settings.get(name, 1)) for name in ("context", "tensor", "pipeline"))
        shared = {f"parallel.{name}": value for name, value in settings.items()} | {
            "train.per_device_train_batch_size": 1,
            "train.gradient_accumulation_steps": WINDOW // split,
        }
        made += [
            Training(_name(text), common | shared, processes, **options),
            Training(_resumed(text), common, checkpoint_of=(_name(text), SAVED), **options),
        ]
    return made


def judge(folder: Path, experiment: Experiment) -> Certificate:
    """Compares losses and norms of all steps, and the final parameters."""
    found: list[str] = []
    problems: list[str] = []
    figures: dict[str, dict[str, float]] = {}
    for text in experiment.strategies:
        if error := error_of(folder, REFERENCE, _name(text), _resumed(text)):
            problems.append(f"{text}: {error}")
            continue
        steps = _largest_difference(folder, _name(text))
        apart = parameter_difference(folder / REFERENCE, folder / _name(text))
        resumed = parameter_difference(folder / REFERENCE, folder / _resumed(text))
        figures[text] = {"losses_and_norms": steps, "parameters": apart, "parameters_resumed": resumed}
        sentence = (
            f"{text}: losses and norms of {STEPS} steps differ by {steps:.1e}, parameters by {apart:.1e}, after a "
            f"resume on one process by {resumed:.1e}"
        )
        fine = steps <= CLOSE and max(apart, resumed) <= CLOSE_PARAMETERS
        (found if fine else problems).append(sentence)
    return Certificate("strategy", PROMISE, FAILED if problems else OK, found, problems, figures)


def _name(text: str) -> str:
    return "strategy-" + text.replace("=", "-").replace(",", "-")


def _resumed(text: str) -> str:
    return f"{_name(text)}-resumed"


def _largest_difference(folder: Path, training: str) -> float:
    """Returns the largest difference of losses and gradient norms of all steps, relative to values above 1."""
    one, other = _figures(folder, REFERENCE), _figures(folder, training)
    if len(one) != len(other):
        return float("inf")
    return max(abs(left - right) / max(1.0, abs(left)) for left, right in zip(one, other, strict=True))


def _figures(folder: Path, training: str) -> list[float]:
    steps = [line for line in read_metrics(RunFolder(folder / training).metrics) if "grad_norm" in line]
    return [step[name] for step in steps for name in ("loss", "grad_norm")]


def parameter_difference(one: Path, other: Path) -> float:
    """Returns the largest difference between the final parameters of two runs; infinity if their names differ."""
    left, right = _weights(one), _weights(other)
    if left.keys() != right.keys():
        return float("inf")
    return max(float((value - right[name]).abs().max()) for name, value in left.items() if value.is_floating_point())


def _weights(run: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    files = RunFolder(run).model.glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}

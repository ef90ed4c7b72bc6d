"""Runs the recipes' smoke configurations with smaller models in this process, and reads their outputs."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from tolerances import FLOAT64

import toolkit.run
from toolkit.api.run import FitResult
from toolkit.api.task import Task
from toolkit.api.training import Callback
from toolkit.base.errors import InputError
from toolkit.recipe import load_settings, load_task_type

ROOT = Path(__file__).resolve().parents[2]
BY_SPLIT = ("train.global_batch_size=null", "train.gradient_accumulation_steps=2")
"""Settings with which a test's micro-batch size, accumulation and processes make the window."""
SMALL = (*BY_SPLIT, "tracking.logging_steps=1", "data.max_eval_samples=23")
TINY = (
    "model.from_config.hidden_size=32",
    "model.from_config.intermediate_size=48",
    "model.from_config.vocab_size=400",
    *SMALL,
)
"""Overrides that make a smoke configuration fast enough to run many times in a test."""

SIZES = {
    "translation": ("model.from_config.vocab_size=400", "task.val_max_target_length=16", *SMALL),
    "summarization": ("model.from_config.vocab_size=400", "task.val_max_target_length=16", *SMALL),
    "reviews/smoke_image": SMALL,
    "reviews/smoke_audio": SMALL,
    "speech_recognition/smoke_ctc": SMALL,
    "speech_recognition/smoke_whisper": SMALL,
}
"""Overrides instead of `TINY` for models whose configurations have other fields."""

SEVERAL = ("qa", "language_modeling", "language_modeling/smoke_masked", "language_modeling/smoke_moe")
"""Configurations whose rows give three or four features each."""


def few_rows(config: str, count: int) -> str:
    """Returns the setting that limits a configuration to training rows that give about this number of features."""
    return f"data.max_train_samples={-(-count // 3) if config in SEVERAL else count}"


SGD = ("train.optim=sgd", "train.learning_rate=0.5", "train.lr_scheduler_type=constant", "train.warmup_steps=0")


def train(
    config: str,
    output_dir: Path,
    *overrides: str,
    double: bool = False,
    sizes: tuple[str, ...] | None = None,
    predict_memory: bool = False,
    observer: Callback | None = None,
) -> FitResult:
    """Runs a configuration of the recipes with `TINY` (or its `SIZES`) and further overrides.

    Args:
        config: name of a recipe for its `smoke.yaml`, or `<recipe>/<name>` for another file.
        output_dir: folder of the run.
        *overrides: `section.key=value` each.
        double: whether weights and computation are float64, so that equal mathematics agrees to `FLOAT64`.
        sizes: overrides instead of `TINY` or `SIZES`.
        predict_memory: whether the report predicts memory, which takes longer than training such a small model.
        observer: called during training.
    """
    name, _, yaml = config.partition("/")
    recipe = ROOT / "recipes" / f"{name}.py"
    file = ROOT / "recipes" / "configs" / name / f"{yaml or 'smoke'}.yaml"
    tiny = SIZES.get(config, TINY) if sizes is None else sizes
    if any(override.startswith("model.name_or_path=") for override in overrides):
        tiny = [override for override in tiny if not override.startswith("model.from_config.")]
    settings = [*BY_SPLIT, *tiny, *overrides, f"output_dir={output_dir}"]
    return train_recipe(recipe, file, *settings, double=double, predict_memory=predict_memory, observer=observer)


def train_recipe(
    recipe: Path,
    config: Path | Mapping[str, Any],
    *overrides: str,
    double: bool = False,
    predict_memory: bool = False,
    observer: Callback | None = None,
) -> FitResult:
    """Runs a recipe with a configuration, a file or its sections, and overrides; other arguments as for `train`."""
    task_type = shipped(recipe) if recipe.is_relative_to(ROOT) else load_task_type(recipe)
    cfg = load_settings(task_type, config, overrides).config
    with nullcontext() if predict_memory else _no_prediction():
        result = toolkit.run.run(cfg, task_type(cfg), recipe, () if observer is None else (observer,), float64=double)
    _keep_imported()
    return result


def shipped(recipe: str | Path) -> type[Task]:
    """Returns the task of a recipe of the repository, loaded once: a new class makes checking its settings slower."""
    task_type, module = _loaded(recipe)
    sys.modules[task_type.__module__] = module  # a copy may have been loaded since
    return task_type


@cache
def _loaded(recipe: str | Path) -> tuple[type[Task], ModuleType]:
    task_type = load_task_type(recipe)
    return task_type, sys.modules[task_type.__module__]


@cache
def _keep_imported() -> None:
    """Lets later collections of garbage be rare, and none visit what the first run has imported, half a second each."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # saves a tenth of a short run; forks of this process have it, too


def _no_prediction() -> AbstractContextManager[Any]:
    refused = InputError("memory is not predicted in this test")
    return patch("toolkit.footprint.predict.predicted", side_effect=refused)


def weights(output_dir: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of the final model, or of its adapters."""
    (file,) = (output_dir / "model").glob("*.safetensors")
    return load_file(file)


def lines(output_dir: Path, having: str = "step") -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl` with an entry of this name, without times, memory and energy."""
    found = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    own = ("second", "memory", "energy")
    return [
        {name: value for name, value in line.items() if not any(word in name for word in own)}
        for line in found
        if having in line
    ]


def predictions(output_dir: Path) -> list[dict[str, Any]]:
    """Returns the lines of `predictions.jsonl`."""
    return [json.loads(line) for line in (output_dir / "predictions.jsonl").read_text().splitlines()]


def without_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns lines of `predictions` without the numbers of their rows, which depend on the format of the file."""
    return [{name: value for name, value in line.items() if name != "row"} for line in lines]


def assert_same_weights(one: Path, other: Path) -> None:
    """Asserts that the final parameters of two runs are equal bit for bit."""
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def assert_close(one: Any, other: Any, tolerance: float, where: str = "") -> None:
    """Asserts that two nested structures are equal, with floats to a relative or absolute tolerance."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_close(one[name], other[name], tolerance, f"{where}.{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_close(left, right, tolerance, f"{where}[{i}]")
    elif isinstance(one, float):
        assert abs(one - other) <= tolerance * max(1.0, abs(one)), f"{where}: {one} and {other}"
    else:
        assert one == other, where


def numbers(output_dir: Path) -> dict[str, list[float]]:
    """Returns a run's weights as numbers."""
    return {name: value.tolist() for name, value in weights(output_dir).items()}


def assert_equal_runs(left: Path, right: Path) -> None:
    """Asserts that two runs in float64 have the same losses, weights, predictions and evaluations."""
    assert_close(lines(left, "loss"), lines(right, "loss"), FLOAT64)
    assert_close(numbers(left), numbers(right), FLOAT64)
    assert_close(predictions(left), predictions(right), FLOAT64)
    assert_close(lines(left, "eval_loss"), lines(right, "eval_loss"), FLOAT64)


def assert_splits_agree(config: str, folder: Path, *overrides: str) -> None:
    """Asserts that windows of 8 rows give equal results in float64 as one micro-batch (`8x1`) and as four (`2x4`)."""
    one, other = folder / "8x1", folder / "2x4"
    for run in (one, other):
        batch, accumulation = run.name.split("x")
        split = (f"train.per_device_train_batch_size={batch}", f"train.gradient_accumulation_steps={accumulation}")
        train(config, run, *overrides, *split, double=True)
    assert_close(lines(one, "loss"), lines(other, "loss"), FLOAT64)
    left, right = weights(one), weights(other)
    assert_close({k: v.tolist() for k, v in left.items()}, {k: v.tolist() for k, v in right.items()}, FLOAT64)

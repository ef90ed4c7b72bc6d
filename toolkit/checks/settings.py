"""Checks of settings by themselves and with the task, and of the files that they name; they import nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial

from toolkit.api.run import best_metric, target_metric
from toolkit.api.task import reads_files
from toolkit.base.errors import problems_of
from toolkit.checks.check import Case
from toolkit.checks.rules import RULES
from toolkit.config import paths
from toolkit.config.keys import section_types
from toolkit.config.messages import show
from toolkit.config.problems import Check, Problem, Stage
from toolkit.config.sections import Config
from toolkit.optim.schedules import schedule_problems, shape_problems


def _option_problems(case: Case) -> Iterator[Problem]:
    """Yields what a recipe finds wrong with its options; each message names all that it depends on."""
    if hasattr(case.cfg.task, "problems"):
        for message in case.cfg.task.problems():
            yield Problem((*Problem.of(message).keys, *re.findall(r"[a-z]\w*(?:\.\w+)+", message)), message)


def _sampling_problems(case: Case) -> Iterator[str]:
    if case.cfg.train.train_sampling_strategy == "balanced" and case.task.class_column() is None:
        yield "train.train_sampling_strategy: received 'balanced', but the rows of this task have no classes"


def _ensemble_problems(case: Case) -> Iterator[str]:
    if case.cfg.train.snapshot_ensemble and not case.task.has("average"):
        yield "train.snapshot_ensemble: received true, but this task's predictions cannot be averaged"


def _pipeline_problems(case: Case) -> Iterator[str]:
    if case.cfg.parallel.pipeline > 1 and case.task.has("forward"):
        yield (
            f"parallel.pipeline: received {case.cfg.parallel.pipeline}, but {type(case.task).__name__} has its own "
            "forward pass, and the stages of a pipeline call the layers of the model; use parallel.tensor or "
            "parallel.fsdp"
        )


def _window_problems(case: Case) -> Iterator[str]:
    train = case.cfg.train
    given = [f"train.strategy: received {train.strategy!r}"] if train.strategy == "local_sgd" else []
    if train.auto_batch_size and (case.processes or 1) > 1:
        given.append(f"train.auto_batch_size: received true with {case.processes} processes")
    if case.task.has("window_loss"):
        why = "all processes must compare the rows of a window at the same time"
        yield from (f"{each}, but the loss compares all rows of a window, and {why}; remove it" for each in given)


def _budget_problems(section: str, rows: str, case: Case) -> Iterator[str]:
    tokens = getattr(case.cfg, section).max_tokens_per_batch
    if tokens is not None and not case.task.unit:
        why = "but all inputs have the same size, so it would be a number of rows"
        yield f"{section}.max_tokens_per_batch: received {tokens}, {why}; set {section}.{rows}"


def _shape_problems(case: Case) -> Iterator[str]:
    multiple = case.cfg.train.pad_to_multiple_of
    if multiple is not None and case.task.unit != "tokens":
        yield f"train.pad_to_multiple_of: received {multiple}, but only batches of text are padded so; remove it"


def _media_problems(case: Case) -> Iterator[str]:
    if case.cfg.data.media_cache != "auto" and not reads_files(case.task):
        what = "has no effect, because this task's inputs are not in files of their own; remove it"
        yield f"data.media_cache: received {show(case.cfg.data.media_cache)}, {what}"


def _generate_problems(case: Case) -> Iterator[str]:
    if case.cfg.eval.generate and not case.task.has("generated_scores"):
        yield "eval.generate: received true, but this task has no given answers to generated ones; remove it"


def _slice_problems(case: Case) -> Iterator[str]:
    if case.cfg.eval.slices and case.task.has("regroup"):
        what = "has no effect, because a block of this task spans several rows; remove it"
        yield f"eval.slices: received {show(case.cfg.eval.slices)}, {what}"


_SECTIONS = {name: section_types(object)[name] for name in ("model", "data", "eval", "checkpoint", "tracking")}
TEXTS = (*(f"{name}.{each.name}" for name, kind in _SECTIONS.items() for each in fields(kind)), "output_dir")
"""Settings that must not be blank if they are text."""


def _of(stage: Stage, key: str, find: Callable[[Config, str], Iterable[str]]) -> Check:
    """Returns the check of a setting by itself."""
    return Check(stage, "", (key,), lambda case: find(case.cfg, key))


SETTINGS = (
    *(rule.check for rule in RULES),
    *(_of("settings", key, paths.blank_problems) for key in TEXTS),
    Check("settings", "", (), _option_problems),
    Check("settings", "train.lr_scheduler_kwargs",
          ("train.lr_scheduler_kwargs", "train.lr_scheduler_type"), lambda case: schedule_problems(case.cfg.train)),
    Check("settings", "whether train.lr_scheduler_kwargs fit together",
          ("train.lr_scheduler_kwargs", "train.lr_scheduler_type", "train.learning_rate"),
          lambda case: shape_problems(case.cfg.train)),
    *(_of("files", f"data.{name}", paths.data_file_problems) for name in paths.DATA_FILES),
    Check("files", "offline_dir",
          ("offline_dir", "model.name_or_path", "model.revision", "data.dataset_name", "data.dataset_config_name",
           "data.revision", *(f"data.{name}" for name in paths.DATA_FILES)),
          lambda case: paths.fetched_problems(case.cfg)),
    Check("files", "model.name_or_path", ("model.name_or_path", "model.revision", "offline_dir"),
          lambda case: paths.model_problems(case.cfg)),
    _of("files", "checkpoint.resume", paths.resume_problems),
    *(_of("files", key, paths.folder_problems) for key in ("output_dir", "data.stage_to")),
)  # fmt: skip
"""Checks of settings by themselves and of the files that they name, in the order in which problems are listed."""

WITH_TASK = (
    Check("task", "eval.metric_for_best_model",
          ("eval.metric_for_best_model", "eval.metrics", "eval.greater_is_better", "eval.generate", "task"),
          lambda case: problems_of(lambda: best_metric(case.cfg, case.task))),
    Check("task", "train.target_metric", ("train.target_metric", "task"),
          lambda case: problems_of(lambda: target_metric(case.cfg, case.task))),
    Check("task", "train.train_sampling_strategy", ("train.train_sampling_strategy", "task"), _sampling_problems),
    Check("task", "train.snapshot_ensemble", ("train.snapshot_ensemble", "task"), _ensemble_problems),
    Check("task", "parallel.pipeline", ("parallel.pipeline", "task"), _pipeline_problems),
    Check("task", "train.strategy, train.auto_batch_size", ("train.strategy", "train.auto_batch_size", "task"),
          _window_problems),
    *(
        Check("task", f"{section}.max_tokens_per_batch", (f"{section}.max_tokens_per_batch", "task"),
              partial(_budget_problems, section, rows))
        for section, rows in (("train", "per_device_train_batch_size"), ("eval", "per_device_eval_batch_size"))
    ),
    Check("task", "data.media_cache", ("data.media_cache", "task"), _media_problems),
    Check("task", "eval.generate", ("eval.generate", "task"), _generate_problems),
    Check("task", "eval.slices", ("eval.slices", "task"), _slice_problems),
    Check("task", "train.pad_to_multiple_of", ("train.pad_to_multiple_of", "task"), _shape_problems),
)  # fmt: skip
"""Checks that need the task, which may import numpy."""

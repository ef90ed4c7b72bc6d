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
from toolkit.modalities.text import listed_synonyms
from toolkit.optim.schedules import schedule_problems, shape_problems


def _option_problems(case: Case) -> Iterator[Problem]:
    """Yields what a recipe finds wrong with its options; each message names all that it depends on."""
    if hasattr(case.cfg.task, "problems"):
        for message in case.cfg.task.problems():
            yield Problem((*Problem.of(message).keys, *re.findall(r"[a-z]\w*(?:\.\w+)+", message)), message)


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


_SECTIONS = {name: section_types(object)[name] for name in ("model", "data", "eval", "checkpoint", "tracking")}
TEXTS = (*(f"{name}.{each.name}" for name, kind in _SECTIONS.items() for each in fields(kind)), "output_dir")
"""Settings that must not be blank if they are text."""


def _of(stage: Stage, key: str, find: Callable[[Config, str], Iterable[str]]) -> Check:
    """Returns the check of a setting by itself."""
    return Check(stage, "", (key,), lambda case: find(case.cfg, key))


def _unfit(key: str, is_unfit: Callable[[Case], bool], why: str) -> Check:
    """Returns the check of a setting that does not fit some tasks."""

    def find(case: Case) -> Iterator[str]:
        section, name = key.split(".")
        if is_unfit(case):
            yield f"{key}: received {show(getattr(getattr(case.cfg, section), name))}, {why}"

    return Check("task", key, (key, "task"), find)


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
    Check("files", "", ("task",), lambda case: problems_of(lambda: listed_synonyms(case.cfg.task))),
    *(_of("files", key, paths.folder_problems) for key in ("output_dir", "data.stage_to")),
)  # fmt: skip
"""Checks of settings by themselves and of the files that they name, in the order in which problems are listed."""

WITH_TASK = (
    Check("task", "eval.metric_for_best_model",
          ("eval.metric_for_best_model", "eval.metrics", "eval.greater_is_better", "eval.generate", "task"),
          lambda case: problems_of(lambda: best_metric(case.cfg, case.task))),
    Check("task", "train.target_metric", ("train.target_metric", "task"),
          lambda case: problems_of(lambda: target_metric(case.cfg, case.task))),
    _unfit("train.train_sampling_strategy",
           lambda case: case.cfg.train.train_sampling_strategy == "balanced" and case.task.class_column() is None,
           "but the rows of this task have no classes"),
    _unfit("train.snapshot_ensemble", lambda case: case.cfg.train.snapshot_ensemble and not case.task.has("average"),
           "but this task's predictions cannot be averaged"),
    Check("task", "parallel.pipeline", ("parallel.pipeline", "task"), _pipeline_problems),
    Check("task", "train.strategy, train.auto_batch_size", ("train.strategy", "train.auto_batch_size", "task"),
          _window_problems),
    *(
        Check("task", f"{section}.max_tokens_per_batch", (f"{section}.max_tokens_per_batch", "task"),
              partial(_budget_problems, section, rows))
        for section, rows in (("train", "per_device_train_batch_size"), ("eval", "per_device_eval_batch_size"))
    ),
    _unfit("data.media_cache", lambda case: case.cfg.data.media_cache != "auto" and not reads_files(case.task),
           "has no effect, because this task's inputs are not in files of their own; remove it"),
    _unfit("eval.generate", lambda case: case.cfg.eval.generate and not case.task.has("generated_scores"),
           "but this task has no given answers to generated ones; remove it"),
    _unfit("eval.slices", lambda case: bool(case.cfg.eval.slices) and case.task.has("regroup"),
           "has no effect, because a block of this task spans several rows; remove it"),
    _unfit("train.pad_to_multiple_of",
           lambda case: case.cfg.train.pad_to_multiple_of is not None and case.task.unit != "tokens",
           "but only batches of text are padded so; remove it"),
)  # fmt: skip
"""Checks that need the task, which may import numpy."""

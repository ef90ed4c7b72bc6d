"""Prepares the training step to plan: the configured model and a micro-batch of its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.config.sections import Config, ParallelConfig
from toolkit.data.batching.budget import largest, lengths_of, multiple_of, padded_length, padding_to
from toolkit.footprint.predict import collated, limits, longest_batch, shapes, stretched, with_rows
from toolkit.footprint.simulate import Subject

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedConfig

    from toolkit.api.batch import Batch, Processor

MAX_ROWS = 512
"""Maximum number of rows to read for a plan, evenly spread over the file."""


def subject_of(cfg: Config, task: Task, length: int | None = None, gpu: bool = False) -> Subject:
    """Reads some rows and builds a micro-batch of the longest, extended to the maximum length or to `length`.

    With `gpu`, the plan is for a GPU even if this machine has none. Raises ToolkitError if a run could not use the rows
    or the model, or `length` is invalid.
    """
    from toolkit.checkpoint.output_folder import Claimed
    from toolkit.config.paths import source_of
    from toolkit.distributed.launch import build_accelerator
    from toolkit.models.load import load_model_config
    from toolkit.prepare.inputs import read_inputs

    cfg = replace(cfg, parallel=ParallelConfig())  # what several processes need follows from the step of a single one
    accelerator = build_accelerator(cfg)
    with TemporaryDirectory(prefix="plan-") as folder:
        inputs = read_inputs(cfg, task, accelerator, Claimed(Path(folder), None), sample=MAX_ROWS)
    config, features = inputs.model_config, inputs.data.train
    processor = padding_to(inputs.processor, cfg.train)
    asked = getattr(load_model_config(source_of(cfg)), "vocab_size", None)
    cut = len(inputs.rows.splits["train"]) + inputs.rows.bad_rows.get("train", 0) >= MAX_ROWS
    if cfg.model.from_config is not None and cut and asked is not None:
        config.vocab_size = asked  # a vocabulary trained on all rows would be full
    longest = _longest(features, task, processor, length)
    batch = longest_batch(features, task, processor, cfg.seed, largest(cfg.train, longest))
    batch = _extended(batch, features, task, processor, cfg.seed, config, length)
    device = accelerator.device if accelerator.device.type == "cuda" else torch.device("cpu")
    return Subject(cfg, task, config, batch, device, gpu and device.type == "cpu", longest)


def _longest(features: datasets.Dataset, task: Task, processor: Processor, length: int | None) -> int:
    """Returns the length of the longest row that the options allow, both sides together."""
    found = lengths_of(features).max(axis=0).tolist()
    source, target = limits(task, processor)
    sides = (source if length is None else length, target if length is None or target is None else length)
    return sum(own if limit is None else limit for own, limit in zip(found, sides, strict=False))


def _extended(
    batch: Batch,
    features: datasets.Dataset,
    task: Task,
    processor: Processor,
    seed: int,
    config: PreTrainedConfig,
    length: int | None,
) -> Batch:
    lengths = features["length"][:]
    shortest = lengths.index(min(lengths))
    shorter = collated(features, [shortest] * len(batch["row_ids"]), task, processor, seed)
    source, target = limits(task, processor)
    if length is None:
        full = [None if limit is None else padded_length(limit, multiple_of(processor)) for limit in (source, target)]
        return stretched(batch, shorter, *full)
    room = getattr(config, "max_position_embeddings", None) if task.unit == "tokens" else None
    if room is not None and length > room:
        raise ConfigError([f"--length: received {length}, but this {config.model_type} has {room} positions"])
    made = stretched(batch, shorter, length, None if target is None else length)
    if shapes(made) == shapes(batch) and length != source:
        raise ConfigError([f"--length: received {length}, but inputs of this task have a fixed size; remove it"])
    return made


def resized(subject: Subject, cfg: Config) -> Subject:
    """Returns the subject with another configuration and its number of rows per micro-batch."""
    batch = with_rows(subject.batch, largest(cfg.train, subject.longest))
    return replace(subject, cfg=cfg, batch=batch)


def sizes(batch: Batch) -> str:
    """Returns the names and shapes of the model's inputs per row, without masks and token types."""
    found = {name: tuple(value.shape[1:]) for name, value in batch["inputs"].items() if hasattr(value, "shape")}
    shown = {name: shape for name, shape in found.items() if not name.endswith("mask") and name != "token_type_ids"}
    return ", ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in shown.items())

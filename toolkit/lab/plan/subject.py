"""What a plan is about: a configuration's model, and a micro-batch of some of its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.config.sections import Config
from toolkit.footprint.predict import shapes
from toolkit.footprint.rows import collated, limits, longest_batch, stretched, with_rows
from toolkit.footprint.simulate import Subject

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedConfig

    from toolkit.api.task import Batch, Processor

MOST_ROWS = 512
"""Rows that are read for a plan, evenly spread over the file."""


def subject_of(cfg: Config, task: Task, length: int | None = None, gpu: bool = False) -> Subject:
    """Reads some rows, and makes of the longest a micro-batch as long as the options allow.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        length: of the inputs instead, in tokens or samples.
        gpu: whether the plan is for a GPU, be there one here or not.

    Raises:
        ToolkitError: for rows or a model that a run would not take either.
    """
    from toolkit import modalities
    from toolkit.data.prepare import load_rows, tokenise
    from toolkit.distributed.launch import build_accelerator
    from toolkit.modalities.processor import build_processor, configure_model
    from toolkit.models.load import check_head, load_model_config

    accelerator = build_accelerator(cfg)
    config, modality = load_model_config(cfg.model), modalities.load(task.modality)
    problems = modality.check_model(config, task.options)
    if problems := problems or check_head(cfg.model, config, task.auto_model(config)):
        raise ConfigError(problems)
    asked = getattr(config, "vocab_size", None)
    with TemporaryDirectory(prefix="plan-") as folder:
        rows = load_rows(cfg, task, accelerator, None, sample=MOST_ROWS)
        processor = build_processor(cfg, task, config, rows, accelerator, Path(folder), None)
    configure_model(config, task, processor, new=cfg.model.from_config is not None)
    cut = len(rows.splits["train"]) + rows.bad_rows.get("train", 0) >= MOST_ROWS
    if cfg.model.from_config is not None and cut and asked is not None:
        config.vocab_size = asked  # more text than was read fills it
    features = tokenise(rows.splits["train"], task, processor, labelled=True)
    batch = longest_batch(features, task, processor, cfg.seed, cfg.train.per_device_train_batch_size)
    batch = _as_long(batch, features, task, processor, cfg.seed, config, length)
    device = accelerator.device if accelerator.device.type == "cuda" else torch.device("cpu")
    return Subject(cfg, task, config, batch, device, fused_attention=gpu and device.type == "cpu")


def _as_long(
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
        return stretched(batch, shorter, source, target)
    room = getattr(config, "max_position_embeddings", None) if task.modality == "text" else None
    if room is not None and length > room:
        raise ConfigError([f"--length: received {length}, but this {config.model_type} has {room} positions"])
    made = stretched(batch, shorter, length, None if target is None else length)
    if shapes(made) == shapes(batch) and length != source:
        raise ConfigError([f"--length: received {length}, but inputs of this task have one size; remove it"])
    return made


def resized(subject: Subject, cfg: Config) -> Subject:
    """Returns the same subject under another configuration, with as many rows as that one has."""
    batch = with_rows(subject.batch, cfg.train.per_device_train_batch_size)
    return replace(subject, cfg=cfg, batch=batch)


def sizes(batch: Batch) -> str:
    """Names the model's inputs with their shapes, but for masks and the like."""
    found = {name: tuple(value.shape[1:]) for name, value in batch["inputs"].items() if hasattr(value, "shape")}
    shown = {name: shape for name, shape in found.items() if not name.endswith("mask") and name != "token_type_ids"}
    return ", ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in shown.items())

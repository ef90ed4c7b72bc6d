"""Predicts the memory of a run from simulated steps of several sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from toolkit import modalities
from toolkit.api.batch import Batch, Processor, looked_up
from toolkit.api.random import RowRandom
from toolkit.api.task import Task, limits_of
from toolkit.base.console import LOGGER
from toolkit.base.errors import InputError
from toolkit.data.batching.batches import collate
from toolkit.data.batching.budget import largest, lengths_of
from toolkit.footprint.simulate import Subject, simulate
from toolkit.modalities.text import TEXTS
from toolkit.tasks.tokens import labelled_positions

if TYPE_CHECKING:
    import datasets

    from toolkit.api.run import Run
    from toolkit.footprint.simulate import Footprint


def longest_batch(features: datasets.Dataset, task: Task, processor: Processor, seed: int, rows: int) -> Batch:
    """Collates the longest of the preprocessed rows into a micro-batch of `rows`, repeating them if there are fewer.

    Its last token counts as padding, since models drop attention masks without padding.
    """
    order = np.argsort(-np.asarray(features["length"][:]), kind="stable")
    batch = collated(features, [int(order[i % len(order)]) for i in range(rows)], task, processor, seed)
    for name, value in batch["inputs"].items():
        if name.endswith("attention_mask") and rows > 1:
            value[-1, -1] = 0
    return batch


def collated(features: datasets.Dataset, picked: list[int], task: Task, processor: Processor, seed: int) -> Batch:
    """Collates the rows with the numbers in `picked`, which may repeat; texts are not augmented."""
    numbers = sorted(set(picked))
    found = ({name: row[name] for name in row if name != TEXTS} for row in features.__getitems__(numbers))
    rows = dict(zip(numbers, found, strict=True))
    return looked_up(collate([rows[number] for number in picked], task, processor, RowRandom(seed, epoch=0)))


def limits(task: Task, processor: Processor) -> tuple[int | None, int | None]:
    """Returns the maximum lengths of inputs and targets that the task's options set, None where they set none.

    Lengths are tokens, for audio inputs samples.
    """
    source = modalities.load(task.modality).longest(task.options, processor)
    return source, getattr(task.options, limits_of(task.options).get("target", ""), None)


def stretched(batch: Batch, shorter: Batch, source: int | None, target: int | None) -> Batch:
    """Extends a micro-batch to lengths of inputs (`source`) and labels (`target`; None keeps one) by repeating values.

    `shorter` has as many, but shorter, rows; the axes on which the two differ are extended.
    """
    separate = target is not None or any(name.startswith("decoder_") for name in batch["inputs"])

    def along(name: str, tensor: Any, other: Any) -> Any:
        if isinstance(tensor, Mapping):
            return {key: along(key, value, other[key]) for key, value in tensor.items()}
        if not isinstance(tensor, Tensor):
            return tensor
        size = target if separate and (name == "labels" or name.startswith("decoder_")) else source
        for axis in range(1, tensor.dim()):
            if size is not None and tensor.shape[axis] != other.shape[axis]:
                tensor = _repeated(tensor, axis, size)
        return tensor

    other: Mapping[str, Any] = shorter
    return _labelled(
        {name: along(name, value, other[name]) for name, value in batch.items() if name != "labelled"},
        "labelled" in batch,
    )


def with_rows(batch: Batch, rows: int) -> Batch:
    """Returns the batch with `rows` rows, by dropping or repeating some of its rows."""
    before = len(batch["row_ids"])

    def along(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: along(part) for key, part in value.items()}
        if isinstance(value, Tensor) and value.dim() > 0 and len(value) == before:
            return _repeated(value, 0, rows)
        return value

    return _labelled({name: along(value) for name, value in batch.items() if name != "labelled"}, "labelled" in batch)


def _labelled(parts: dict[str, Any], has_positions: bool) -> Batch:
    """Returns a batch of these parts, with the labelled positions of its labels if it has such."""
    if has_positions:
        parts["labelled"] = labelled_positions(parts["labels"])
    return cast(Batch, parts)


def _repeated(tensor: Tensor, axis: int, size: int) -> Tensor:
    return tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])


def predicted_parts(run: Run) -> dict[str, int] | None:
    """Returns the predicted bytes by the same parts that are measured, or None if they cannot be predicted."""
    try:
        found = predicted(run)
    except InputError as error:  # the report then shows only the measured memory
        LOGGER.debug("the memory of training was not predicted: %s", error)
        return None
    train, several = run.cfg.train, run.mesh.data_size > 1
    # DDP keeps a second copy of the gradients, in buckets; the outer optimizer keeps anchors and a momentum.
    wrapped = several and run.strategy.wraps_model
    outer = several and not wrapped and train.local_sgd_outer_lr is not None
    copies = (wrapped + 2 * outer) * found.gradients
    parts = {"parameters": found.parameters + found.buffers, "gradients": found.gradients,
             "optimizer_state": found.optimizer_state}  # fmt: skip
    peak = found.peak + copies
    return {**parts, "rest": max(0, peak - sum(parts.values())), "train_peak": peak}


def shapes(batch: Any) -> Any:
    """Returns the shapes and types of a batch's tensors, as JSON values."""
    if isinstance(batch, dict):
        return {name: shapes(value) for name, value in batch.items()}
    return [str(batch.dtype), *batch.shape] if isinstance(batch, torch.Tensor) else None


OF_MEMORY = (
    "optim", "optim_args", "mixed_precision", "activation_checkpointing", "activation_compression",
    "activation_offload", "gradient_accumulation_steps", "per_device_train_batch_size", "max_tokens_per_batch",
    "ema_decay", "unpadded", "fast_dropout", "torch_compile", "chunked_loss",
)  # fmt: skip
"""Settings in the section `train` that a footprint depends on; settings of `parallel` decide about padding, too."""

_PREDICTED: dict[str, Footprint] = {}


def predicted(run: Run) -> Footprint:
    """Predicts the memory of a run's training step from its model's configuration and its longest rows.

    It may be called before or after training, on any process. Predictions are cached in the process. Raises InputError
    if the training step cannot be simulated on fake tensors.
    """
    cfg, device = run.cfg, run.accelerator.device
    longest = int(lengths_of(run.data.train).sum(axis=1).max())
    size = min(largest(cfg.train, longest), len(run.data.train))
    batch = longest_batch(run.data.train, run.task, run.processor, cfg.seed, size)
    subject = Subject(cfg, run.task, run.model.config, batch, device, longest=longest)
    key = json.dumps(
        [run.model.config.to_dict(), asdict(cfg.model), {name: getattr(cfg.train, name) for name in OF_MEMORY},
         asdict(cfg.parallel), asdict(run.task.options), shapes(batch), type(run.task).__name__, str(device)],
        sort_keys=True, default=str,
    )  # fmt: skip
    if key not in _PREDICTED:
        _PREDICTED[key] = simulate(subject)
    return _PREDICTED[key]

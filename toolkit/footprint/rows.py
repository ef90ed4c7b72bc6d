"""Builds the micro-batch to simulate: real rows, collated by the task and extended to the maximum length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from toolkit.api.batch import Batch, Processor, looked_up
from toolkit.api.random import RowRandom
from toolkit.api.task import Task, limits_of
from toolkit.data.batching.batches import collate
from toolkit.tasks.tokens import labelled_positions

if TYPE_CHECKING:
    import datasets


def longest_batch(features: datasets.Dataset, task: Task, processor: Processor, seed: int, rows: int) -> Batch:
    """Collates the longest rows into one micro-batch.

    Its last token counts as padding, since models drop attention masks without padding.

    Args:
        features: preprocessed rows; repeated if there are fewer than `rows`.
        task: the task, which collates them.
        processor: the run's processor.
        seed: seed of augmentation.
        rows: number of rows of the micro-batch.
    """
    order = np.argsort(-np.asarray(features["length"][:]), kind="stable")
    batch = collated(features, [int(order[i % len(order)]) for i in range(rows)], task, processor, seed)
    for name, value in batch["inputs"].items():
        if name.endswith("attention_mask") and rows > 1:
            value[-1, -1] = 0
    return batch


def collated(features: datasets.Dataset, picked: list[int], task: Task, processor: Processor, seed: int) -> Batch:
    """Collates the rows with the numbers in `picked`, which may repeat."""
    numbers = sorted(set(picked))
    rows = dict(zip(numbers, features.__getitems__(numbers), strict=True))
    return looked_up(collate([rows[number] for number in picked], task, processor, RowRandom(seed, epoch=0)))


def limits(task: Task, processor: Processor) -> tuple[int | None, int | None]:
    """Returns the maximum lengths of inputs and targets that the task's options set, None where they set none.

    Lengths are tokens, for audio inputs samples.
    """
    options = task.options
    lengths = {side: getattr(options, name) for side, name in limits_of(options).items()}
    if task.modality == "audio":
        return round(options.audio.max_seconds * processor.sampling_rate), lengths.get("target")
    return lengths.get("input", lengths.get("source")), lengths.get("target")


def stretched(batch: Batch, shorter: Batch, source: int | None, target: int | None) -> Batch:
    """Extends a batch to the given lengths by repeating its values.

    Args:
        batch: a micro-batch.
        shorter: a micro-batch with as many, but shorter, rows; the axes on which the two differ are extended.
        source: length of inputs, or None to keep it.
        target: length of the decoder's inputs and labels, or None to keep it.
    """
    decodes = any(name.startswith("decoder_") for name in batch["inputs"])

    def along(name: str, tensor: Any, other: Any) -> Any:
        if isinstance(tensor, Mapping):
            return {key: along(key, value, other[key]) for key, value in tensor.items()}
        if not isinstance(tensor, Tensor):
            return tensor
        size = target if decodes and (name == "labels" or name.startswith("decoder_")) else source
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

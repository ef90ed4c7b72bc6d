"""Data loaders over feature rows, with the toolkit's own order and collator; not for `Accelerator.prepare`."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from toolkit.api.mesh import Mesh
from toolkit.api.random import RowRandom
from toolkit.api.task import IGNORE_INDEX, Batch, Processor, Task
from toolkit.base.processes import STOP_SIGNALS
from toolkit.data.order import Order, WindowSampler, evaluation_batches

if TYPE_CHECKING:
    import datasets

    from toolkit.config.sections import Config, TrainConfig


def collate(features: list[dict[str, Any]], task: Task, processor: Processor, random: RowRandom) -> Batch:
    """Returns the task's batch of feature rows, with `row_ids`."""
    batch = task.collate(features, processor, random)
    batch["row_ids"] = torch.tensor([row["row_id"] for row in features])
    return batch


def collate_or_mask(
    features: list[dict[str, Any]], *, task: Task, processor: Processor, random: RowRandom, stand_in: dict[str, Any]
) -> Batch:
    """Collates rows; an empty list gives a batch of one masked row, since models such as BERT fail on empty batches.

    Every label of the masked row is ignored, so its loss and its gradients are exactly zero.

    Args:
        features: the feature rows; may be empty.
        task: collates them.
        processor: the processor for the collator.
        random: random numbers of the rows.
        stand_in: the feature row to mask.
    """
    if features:
        return collate(features, task, processor, random)
    batch = collate([stand_in], task, processor, random)
    labels = batch["labels"]
    batch["labels"] = torch.full_like(labels, math.nan if labels.is_floating_point() else IGNORE_INDEX)
    batch["row_ids"] = torch.full_like(batch["row_ids"], -1)
    return batch


def split_batch(
    features: datasets.Dataset, task: Task, processor: Processor, seed: int, epoch: int, batch: Batch, size: int
) -> Iterator[Batch]:
    """Splits a training micro-batch into parts of at most `size` rows, each collated and padded separately.

    Args:
        features: the training features.
        task: collates them.
        processor: the processor for the collator.
        seed: the run's seed.
        epoch: the epoch of the micro-batch.
        batch: the micro-batch, with `row_ids` `[B]`.
        size: maximum number of rows of a part.

    Yields:
        The parts, in order; the micro-batch itself if it is small enough.
    """
    ids = batch["row_ids"].tolist()
    if len(ids) <= size:
        yield batch
        return
    random = RowRandom(seed, epoch)
    for start in range(0, len(ids), size):
        yield collate(features.__getitems__(ids[start : start + size]), task, processor, random)


def _loader(
    features: datasets.Dataset,
    batches: Any,
    task: Task,
    processor: Processor,
    random: RowRandom,
    train: TrainConfig,
    persistent: bool = False,
) -> DataLoader:
    return DataLoader(
        features,
        batch_sampler=batches,
        # New workers get the sampler's epoch with `random`; persistent ones share it.
        collate_fn=partial(collate_or_mask, task=task, processor=processor, random=random, stand_in=features[0]),
        num_workers=train.dataloader_num_workers,
        worker_init_fn=_outlive_stop_signals,
        persistent_workers=persistent,
        prefetch_factor=train.dataloader_prefetch_factor,
        pin_memory=train.dataloader_pin_memory and torch.cuda.is_available(),
        # Without its own generator, the loader would draw a base seed from the global one in every epoch.
        generator=torch.Generator().manual_seed(0),
    )


def _outlive_stop_signals(worker: int) -> None:
    """Ignores stop signals: schedulers and terminals send them to every process, but the rank must finish and save."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def ended_workers(loader: DataLoader) -> Iterator[None]:
    """Ends persistent workers on exit; Python would end them with SIGTERM, which they ignore."""
    try:
        yield
    finally:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()  # type: ignore[attr-defined]
            loader._iterator = None


def training_order(features: datasets.Dataset, cfg: Config, mesh: Mesh) -> Order:
    """Returns the order of the training rows; arguments as for `training_loader`."""
    train = cfg.train
    return Order(
        num_rows=len(features),
        batch_size=train.per_device_train_batch_size,
        accumulation=train.gradient_accumulation_steps or 1,
        data_size=mesh.data_size,
        seed=cfg.seed,
        strategy=train.train_sampling_strategy,
        lengths=np.asarray(features["length"][:]) if train.train_sampling_strategy == "group_by_length" else None,
        classes=np.asarray(features["class_id"][:]) if train.train_sampling_strategy == "balanced" else None,
    )


def training_loader(
    features: datasets.Dataset, task: Task, processor: Processor, cfg: Config, mesh: Mesh
) -> tuple[DataLoader, WindowSampler]:
    """Returns the loader of this rank's training micro-batches, and its sampler, which sets where it starts.

    Args:
        features: the training features.
        task: collates them.
        processor: the processor for the collator.
        cfg: resolved configuration.
        mesh: arrangement of the processes.
    """
    train = cfg.train
    sampler = WindowSampler(training_order(features, cfg, mesh), mesh.data_rank)
    if train.dataloader_persistent_workers:
        sampler.random.share()
    loader = _loader(
        features, sampler, task, processor, sampler.random, train, persistent=train.dataloader_persistent_workers
    )
    return loader, sampler


def evaluation_loader(
    features: datasets.Dataset, task: Task, processor: Processor, cfg: Config, mesh: Mesh
) -> DataLoader:
    """Returns the loader of this rank's part of an evaluation set; arguments as for `training_loader`."""
    lengths = np.asarray(features["length"][:])
    # Processes that gather parameters from one another must make the same number of passes.
    batches = evaluation_batches(
        lengths, cfg.eval.per_device_eval_batch_size, mesh.data_rank, mesh.data_size, equally_many=mesh.is_split
    )
    return _loader(features, batches, task, processor, RowRandom(cfg.seed, epoch=-1), cfg.train)

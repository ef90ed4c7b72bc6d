"""Data loaders over feature rows, with the toolkit's own order and collator; not for `Accelerator.prepare`."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from toolkit.api.mesh import Mesh
from toolkit.api.random import RowRandom
from toolkit.api.task import IGNORE_INDEX, Batch, Processor, Task
from toolkit.base.processes import STOP_SIGNALS
from toolkit.data.budget import Budget, lengths_of, training_budget
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
    features: datasets.Dataset,
    task: Task,
    processor: Processor,
    random: RowRandom,
    batch: Batch,
    size: int,
    budget: Budget | None = None,
) -> Iterator[Batch]:
    """Splits a training micro-batch into smaller parts, each collated and padded separately.

    Args:
        features: the training features.
        task: collates them.
        processor: the processor for the collator.
        random: random numbers of the rows in the epoch of the micro-batch.
        batch: the micro-batch, with `row_ids` `[B]`.
        size: maximum number of rows of a part, or of tokens if there is a budget.
        budget: what cut the micro-batch, or None.

    Yields:
        The parts, in order; the micro-batch itself if it is small enough.
    """
    ids = batch["row_ids"].tolist()
    if ids == [-1]:
        parts = [ids]
    elif budget is not None:
        parts = budget.cut(ids, size)
    else:
        parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    for part in parts:
        yield collate(features.__getitems__(part), task, processor, random) if len(parts) > 1 else batch


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


def training_order(features: datasets.Dataset, cfg: Config, mesh: Mesh, budget: Budget | None = None) -> Order:
    """Returns the order of the training rows.

    Args:
        features: the training features.
        cfg: resolved configuration.
        mesh: arrangement of the processes.
        budget: cuts windows into micro-batches; which rows a window has does not depend on it.
    """
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
        budget=budget,
    )


class Windows:
    """The windows of an epoch from where a sampler starts, each a list of this rank's micro-batches.

    A window is complete before it is trained on.

    Args:
        loader: loads the sampler's micro-batches.
        sampler: determines where an iteration starts.
    """

    def __init__(self, loader: DataLoader, sampler: WindowSampler) -> None:
        self.loader, self.sampler = loader, sampler
        self.dataset = loader.dataset

    def __iter__(self) -> Iterator[list[Batch]]:
        batches = iter(self.loader)
        for rows in self.sampler.windows():
            yield list(islice(batches, len(rows)))

    def __len__(self) -> int:
        return self.sampler.order.windows_per_epoch


def training_loader(
    features: datasets.Dataset, task: Task, processor: Processor, cfg: Config, mesh: Mesh, unpadded: bool = False
) -> tuple[DataLoader, WindowSampler]:
    """Returns the loader of this rank's training micro-batches, and its sampler, which sets where it starts.

    Args:
        features: the training features.
        task: collates them.
        processor: the processor for the collator.
        cfg: resolved configuration.
        mesh: arrangement of the processes.
        unpadded: whether the model computes on rows without padding, so that padding does not count as tokens.
    """
    train = cfg.train
    budget = training_budget(features, cfg, mesh, task.modality, unpadded)
    sampler = WindowSampler(training_order(features, cfg, mesh, budget), mesh.data_rank)
    if train.dataloader_persistent_workers:
        sampler.random.share()
    loader = _loader(
        features, sampler, task, processor, sampler.random, train, persistent=train.dataloader_persistent_workers
    )
    return loader, sampler


def evaluation_loader(
    features: datasets.Dataset, task: Task, processor: Processor, cfg: Config, mesh: Mesh
) -> DataLoader:
    """Returns the loader of this rank's part of an evaluation set.

    Batches have up to `eval.per_device_eval_batch_size` rows and `eval.max_tokens_per_batch` tokens; arguments as for
    `training_loader`.
    """
    # Processes that gather parameters from one another must make the same number of passes.
    batches = evaluation_batches(
        lengths_of(features),
        cfg.eval.per_device_eval_batch_size,
        mesh.data_rank,
        mesh.data_size,
        equally_many=mesh.fsdp > 1,
        max_tokens=cfg.eval.max_tokens_per_batch,
    )
    return _loader(features, batches, task, processor, RowRandom(cfg.seed, epoch=-1), cfg.train)

"""Data loaders over feature rows, with the toolkit's own order and collator; not for `Accelerator.prepare`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from toolkit.api.batch import IGNORE_INDEX, Batch, Kept, Omission, Processor, looked_up
from toolkit.api.mesh import Mesh
from toolkit.api.random import RowRandom
from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.config.sections import Config, DataConfig, TrainConfig
from toolkit.data.batching.budget import Budget, lengths_of, training_budget
from toolkit.data.batching.order import Order, WindowSampler, evaluation_batches, shares
from toolkit.data.batching.workers import WatchedLoader

if TYPE_CHECKING:
    import datasets


def collate(
    features: list[dict[str, Any]],
    task: Task,
    processor: Processor,
    random: RowRandom,
    kept: Kept | None = None,
    rows: datasets.Dataset | None = None,
    stand_in: dict[str, Any] | None = None,
) -> Batch:
    """Returns the task's batch of feature rows, with `row_ids`.

    Rows are mixed with others of `rows`, all training features. `kept` has cached decoded files. A batch without rows
    gets the `stand_in`, since models such as BERT fail without any; all of its labels are ignored, so its loss and its
    gradients are exactly zero.
    """
    if not features and stand_in is not None:
        batch = collate([stand_in], task, processor, random, kept)
        labels = batch["labels"]
        batch["labels"] = torch.full_like(labels, math.nan if labels.is_floating_point() else IGNORE_INDEX)
        batch["row_ids"] = torch.full_like(batch["row_ids"], -1)
        return batch
    mixes = rows is not None and random.training and task.mixes
    if kept is not None and task.has("decoded"):
        features = [row | {"decoded": _decoded(row, task, processor, random.training, kept)} for row in features]
    batch = (task.collate if mixes else task.compact)(features, processor, random)
    if mixes:
        assert rows is not None
        ids = [row["row_id"] for row in features]
        partners = rows.__getitems__([random.partner(row_id, len(rows)) for row_id in ids])
        others = collate(partners, task, processor, random, kept)
        batch = task.mix(batch, looked_up(others), ids, random)
    batch["row_ids"] = torch.tensor([row["row_id"] for row in features])
    return batch


def _decoded(row: dict[str, Any], task: Task, processor: Processor, training: bool, kept: Kept) -> np.ndarray | None:
    return kept.decoded(row["row_id"], lambda: task.decoded(row, processor, training))


def split_batch(
    features: datasets.Dataset,
    task: Task,
    processor: Processor,
    random: RowRandom,
    batch: Batch,
    size: int,
    budget: Budget | None = None,
) -> Iterator[Batch]:
    """Yields a training micro-batch in parts of at most `size` rows, or tokens with a budget, each padded separately.

    `random` draws the random numbers of the micro-batch's epoch; a small enough micro-batch is the only part.
    """
    ids = batch["row_ids"].tolist()
    if ids == [-1]:
        parts = [ids]
    elif budget is not None:
        parts = budget.cut(ids, size)
    else:
        parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    for part in parts:
        rows = features.__getitems__(part) if len(parts) > 1 else []
        yield collate(rows, task, processor, random, rows=features) if rows else batch


def _loader(
    features: datasets.Dataset,
    batches: Any,
    task: Task,
    processor: Processor,
    random: RowRandom,
    train: TrainConfig,
    workers: int,
    kept: Kept | None,
    persistent: bool = False,
) -> WatchedLoader:
    collator = partial(
        collate,
        task=task, processor=processor, random=random, kept=kept, rows=features, stand_in=features[0],
    )  # fmt: skip
    return WatchedLoader(
        features,
        batch_sampler=batches,
        # New workers get the sampler's epoch with `random`; persistent ones share it.
        collate_fn=collator,
        num_workers=workers,
        heartbeat_timeout=train.heartbeat_timeout,
        persistent_workers=persistent,
        prefetch_factor=train.dataloader_prefetch_factor if workers else None,
        pin_memory=train.dataloader_pin_memory and torch.cuda.is_available(),
        # Without its own generator, the loader would draw a base seed from the global one in every epoch.
        generator=torch.Generator().manual_seed(0),
    )


def file_numbers(features: datasets.Dataset, data: DataConfig) -> np.ndarray:
    """Returns the number of each feature row's file in a list; of several rows, the first one's."""
    known = {name: place for place, name in enumerate(data.file_names.values())}
    return np.array([known[name.rpartition(":")[0]] for name in features["number"][:]])


def mixed(features: datasets.Dataset, data: DataConfig) -> Iterator[Omission]:
    """Yields how many rows of each file repeat in an epoch, or wait for later ones; raises DataError if it has none."""
    counts = np.bincount(file_numbers(features, data), minlength=len(data.mix)).tolist()
    for name, count, quota in zip(data.file_names.values(), counts, shares(len(features), data.mix), strict=False):
        details = f"an epoch of {len(features):,} rows has {quota:,} of this file, which has {count:,}"
        if not count or not quota:
            raise DataError(f"data.mix: {name}: {details}.")
        if quota != count:
            what = "rows of an epoch repeat others" if quota > count else "rows are not drawn in every epoch"
            yield Omission(f"{what} (data.mix)", abs(quota - count), max(quota, count), details, name)


def training_order(features: datasets.Dataset, cfg: Config, mesh: Mesh, budget: Budget | None = None) -> Order:
    """Returns the order of the training rows; a budget cuts windows into micro-batches, but keeps their rows."""
    train = cfg.train
    return Order(
        num_rows=len(features),
        batch_size=train.micro_batch,
        accumulation=train.accumulation,
        data_size=mesh.data_size,
        seed=cfg.seed,
        strategy=train.train_sampling_strategy,
        lengths=np.asarray(features["length"][:]) if train.train_sampling_strategy == "group_by_length" else None,
        classes=np.asarray(features["class_id"][:]) if train.train_sampling_strategy == "balanced" else None,
        budget=budget,
        rows=train.rows_per_step(mesh.data_size),
        files=file_numbers(features, cfg.data) if cfg.data.mix else None,
        mix=cfg.data.mix,
    )


class Windows:
    """The windows of an epoch from the sampler's start, each a list of this rank's micro-batches.

    A window is complete before it is trained on.
    """

    def __init__(self, loader: WatchedLoader, sampler: WindowSampler) -> None:
        self.loader, self.sampler = loader, sampler
        self.dataset = loader.dataset

    def __iter__(self) -> Iterator[list[Batch]]:
        batches = iter(self.loader)
        for rows in self.sampler.windows():
            yield list(islice(batches, len(rows)))

    def __len__(self) -> int:
        return self.sampler.order.windows_per_epoch


def training_loader(
    features: datasets.Dataset,
    task: Task,
    processor: Processor,
    cfg: Config,
    mesh: Mesh,
    workers: int = 0,
    kept: Kept | None = None,
    unpadded: bool = False,
) -> tuple[WatchedLoader, WindowSampler]:
    """Returns the loader of this rank's training micro-batches, and its sampler, which sets where it starts.

    With 0 `workers` (see `num_workers`), this process loads batches. `kept` has cached decoded files; without it, they
    are decoded whenever they are needed. If the model is `unpadded`, padding does not count as tokens.
    """
    train = cfg.train
    budget = training_budget(features, cfg, mesh, task.unit, unpadded)
    sampler = WindowSampler(training_order(features, cfg, mesh, budget), mesh.data_rank)
    persistent = train.dataloader_persistent_workers and workers > 0
    if persistent:
        sampler.random.share()
    return _loader(features, sampler, task, processor, sampler.random, train, workers, kept, persistent), sampler


def evaluation_loader(
    features: datasets.Dataset,
    task: Task,
    processor: Processor,
    cfg: Config,
    mesh: Mesh,
    workers: int = 0,
    kept: Kept | None = None,
) -> WatchedLoader:
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
        equally_many=mesh.is_split,
        max_tokens=cfg.eval.max_tokens_per_batch,
    )
    random = RowRandom(cfg.seed, epoch=-1)
    return _loader(features, batches, task, processor, random, cfg.train, workers, kept)

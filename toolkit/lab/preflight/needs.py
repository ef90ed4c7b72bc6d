"""Predicts what a run needs of a machine, from a simulated step with some of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.config.sections import Config
from toolkit.data.batching.workers import num_workers
from toolkit.data.sources import is_files, num_bytes
from toolkit.footprint.simulate import Footprint, simulate
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.subject import subject_of
from toolkit.lab.preflight.found import Needs

PREFETCH = 2
"""Batches that each data loader worker keeps ready, if it is not set."""
OF_ROWS = 3
"""Bytes of checked and tokenised rows for a byte of a data file: the text once, and token numbers beside it."""
FILES_OF_CHECKPOINT, FILES_OF_RUN = 20, 100


def needs_of(cfg: Config, task: Task, processes: int, world: int) -> Needs:
    """Returns what a run needs of a machine.

    Args:
        cfg: the settings, which a run accepts.
        task: the recipe's task.
        processes: processes on the machine.
        world: processes on all machines.

    Raises:
        ToolkitError: if a step cannot be simulated.
    """
    import torch

    on_gpu = torch.cuda.is_available()
    subject = subject_of(cfg, task, gpu=on_gpu)
    footprint = simulate(subject)
    # What DeepSpeed holds in addition is not known.
    known = cfg.parallel.backend != "deepspeed"
    memory = estimated(footprint, cfg, world).peak if known and world > 1 else footprint.peak if known else None
    workers = num_workers(cfg.train, task, subject.device)
    batches = workers * (cfg.train.dataloader_prefetch_factor or PREFETCH) * processes
    number = _checkpoints(cfg)
    return Needs(
        processes=processes,
        memory=memory,
        disk=_disk(footprint, number, adapted=cfg.model.peft.method != "none"),
        files=FILES_OF_RUN + number * FILES_OF_CHECKPOINT,
        cache=OF_ROWS * sum(_sizes(cfg)),
        shared=batches * _bytes_of(subject.batch),
    )


def _disk(footprint: Footprint, checkpoints: int, adapted: bool) -> int:
    """Returns the bytes of the model and of the checkpoints that exist at once."""
    weights = footprint.parameters + footprint.buffers
    model = weights * footprint.trained // max(1, footprint.total) if adapted else weights
    return model + checkpoints * (weights + footprint.optimizer_state + footprint.copies)


def _checkpoints(cfg: Config) -> int:
    """Returns how many checkpoints there are at once, at least: the number of steps may follow from all rows."""
    save, train = cfg.checkpoint, cfg.train
    limit = None if save.save_total_limit is None else save.save_total_limit + 1  # an old one is removed afterwards
    if save.save_steps is None:
        return 1  # after a signal
    count = 2
    if isinstance(save.save_steps, int | float):
        if save.save_steps < 1:
            count = int(1 / save.save_steps) + 1
        elif train.max_steps > 0:
            count = int(train.max_steps // save.save_steps) + 1
    return count if limit is None else min(count, limit)


def _sizes(cfg: Config) -> Iterator[int]:
    for file in (cfg.data.train_file, cfg.data.validation_file, cfg.data.test_file):
        if file is not None and not is_files(file):  # of which rows are only references
            try:
                yield num_bytes(file)
            except DataError:
                continue  # reported where it is read


def _bytes_of(value: Any) -> int:
    """Returns the bytes of all tensors in a batch."""
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    return value.numel() * value.element_size() if hasattr(value, "element_size") else 0

"""Predicts the memory of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from toolkit.base.console import LOGGER
from toolkit.base.errors import InputError
from toolkit.data.batching.budget import largest, lengths_of
from toolkit.footprint.rows import longest_batch
from toolkit.footprint.simulate import Subject, simulate

if TYPE_CHECKING:
    from toolkit.api.run import Run
    from toolkit.footprint.footprint import Footprint


def predicted(run: Run) -> Footprint:
    """Predicts the memory of a run's training step from its model's configuration and its longest rows.

    It may be called before or after training, on any process. Predictions are cached in the process.

    Raises:
        InputError: if the training step cannot be simulated on fake tensors.
    """
    return predicted_footprint(run)


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
    "optim",
    "optim_args",
    "mixed_precision",
    "activation_checkpointing",
    "activation_compression",
    "activation_offload",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "max_tokens_per_batch",
    "ema_decay",
    "unpadded",
    "fast_dropout",
    "torch_compile",
)
"""Settings in the section `train` that a footprint depends on; those of `parallel` decide about padding, too."""

_PREDICTED: dict[str, Footprint] = {}


def predicted_footprint(run: Run) -> Footprint:
    """See `toolkit.footprint.predict.predicted`."""
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

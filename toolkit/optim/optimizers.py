"""Optimizers: one function per name, and the parameter groups they share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from toolkit.config.sections import TrainConfig
from toolkit.errors import ConfigError


def _adamw(groups: Iterable[dict[str, Any]], train: TrainConfig, **arguments: Any) -> Optimizer:
    betas = (train.adam_beta1, train.adam_beta2)
    return AdamW(groups, lr=train.learning_rate, betas=betas, eps=train.adam_epsilon, **arguments)


def _sgd(groups: Iterable[dict[str, Any]], train: TrainConfig, **arguments: Any) -> Optimizer:
    return SGD(groups, lr=train.learning_rate, **arguments)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw_torch": _adamw,
    "adamw_torch_fused": partial(_adamw, fused=True),
    "sgd": _sgd,
}
CONSTRUCTORS: dict[str, type[Optimizer]] = {"adamw_torch": AdamW, "adamw_torch_fused": AdamW, "sgd": SGD}


def check_optim_args(train: TrainConfig) -> None:
    """Checks `train.optim_args` against the optimizer's constructor.

    Raises:
        ConfigError: naming every argument that the constructor does not have.
    """
    known = set(inspect.signature(CONSTRUCTORS[train.optim]).parameters) - {"params", "lr", "weight_decay"}
    problems = [
        f"train.optim_args.{name}: unknown argument of {train.optim}; known: {', '.join(sorted(known))}"
        for name in train.optim_args
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Splits trainable parameters into those that decay and those that do not.

    Vectors and scalars (biases, gains and offsets of normalisation layers) do not decay, as in BERT's training
    (Devlin et al. 2019, arXiv 1810.04805).
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, train: TrainConfig) -> Optimizer:
    """Builds the optimizer named by `train.optim`.

    Raises:
        ConfigError: if an argument's value is refused by the optimizer.
    """
    groups = parameter_groups(model, train.weight_decay)
    try:
        optimizer = OPTIMIZERS[train.optim](groups, train, **train.optim_args)
    except (TypeError, ValueError) as error:
        raise ConfigError([f"train.optim_args: {train.optim} refuses {train.optim_args}: {error}"]) from error
    # Fused ones leave an update that overflowed fp16 out by themselves, unseen: accelerate, and so the schedule, would
    # count it. Without this the scaler does not call them at all then.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    return optimizer

"""Builds optimizers from presets, parameter groups and the YAML's settings."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from toolkit.base.console import warn
from toolkit.base.errors import ConfigError, problems_of
from toolkit.base.package import import_object
from toolkit.config.messages import did_you_mean
from toolkit.config.sections import TrainConfig
from toolkit.optim.groups import parameter_groups
from toolkit.optim.momentum import start_momentum
from toolkit.optim.presets import PRESETS
from toolkit.optim.schedules import peak_rate

_OWN_KEYS = {"params", "lr", "weight_decay"}


def constructor(optim: str) -> type[Optimizer]:
    """Imports an optimizer's class.

    Raises:
        ConfigError: if its library is not installed or is too old.
    """
    preset = PRESETS[optim]
    if preset.library is not None and importlib.util.find_spec(preset.library) is None:
        hint = "pip install 'finetune-toolkit[optimizers]'"
        raise ConfigError([f"train.optim: received {optim!r}, but {preset.library} is not installed ({hint})"])
    try:
        return import_object(preset.constructor)
    except ImportError as error:
        raise ConfigError([f"train.optim: received {optim!r}, which the installed library lacks: {error}"]) from error


def library_problems(train: TrainConfig) -> list[str]:
    """Returns the problem, as a complete message, if the optimizer's library is not installed or is too old."""
    return problems_of(lambda: constructor(train.optim))


def argument_problems(train: TrainConfig) -> list[str]:
    """Returns one complete message for each unknown argument in `train.optim_args`."""
    if not train.optim_args or library_problems(train):
        return []
    preset = PRESETS[train.optim]
    hidden = _OWN_KEYS | set(preset.fixed) | preset.hidden
    if preset.takes:
        hidden |= {"betas", "eps"}
    known = sorted(set(inspect.signature(constructor(train.optim)).parameters) - hidden)
    return [
        f"train.optim_args.{name}: unknown argument of {train.optim}; known: {', '.join(known)}"
        f"{did_you_mean(name, known)}"
        for name in train.optim_args
        if name not in known
    ]


def build_optimizer(model: nn.Module, train: TrainConfig, outline: nn.Module | None = None) -> Optimizer:
    """Builds the optimizer named by `train.optim`.

    Args:
        model: the unwrapped model.
        train: the YAML's `train` section.
        outline: the complete model, if other processes train some of its parameters.

    Raises:
        ConfigError: if the optimizer is not installed or rejects the value of an argument, or a rate is configured for
            a head or layers that the model does not have.
    """
    preset = PRESETS[train.optim]
    settings: dict[str, Any] = {**preset.fixed, "lr": None if preset.relative_step else train.learning_rate}
    if "adam_beta1" in preset.takes:
        settings["betas"] = (train.adam_beta1, train.adam_beta2)
    if "adam_epsilon" in preset.takes:
        settings["eps"] = train.adam_epsilon
    settings |= start_momentum(train)
    # Checkpoints distinguish tuples from lists, and torch's defaults are tuples.
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in train.optim_args.items()}
    groups = parameter_groups(model, train, peak_rate(train), outline)
    build: Callable[..., Optimizer] = constructor(train.optim)
    try:
        optimizer = build(groups, **settings, **own)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError([f"train.optim_args: {train.optim} rejects {train.optim_args}: {error}"]) from error
    # Fused optimizers silently skip an update that overflows in fp16, but accelerate, and so the schedule, would count
    # it. With this attribute False, the scaler does not call the optimizer for such an update.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    if preset.eight_bit:
        _keep_embeddings_in_32_bits(optimizer, model)
    if preset.unpaged is not None and not torch.accelerator.is_available():
        # The attribute below turns off the same warning of bitsandbytes.
        warn(f"train.optim={train.optim} does not page on a CPU; it is the same as {preset.unpaged}")
        optimizer._cpu_paged_warned = True  # type: ignore[attr-defined]
    return optimizer


def _keep_embeddings_in_32_bits(optimizer: Any, model: nn.Module) -> None:
    from bitsandbytes.optim import GlobalOptimManager

    # One manager per optimizer: the library's is shared by the process and would keep the parameters of previous runs.
    manager = GlobalOptimManager.__new__(GlobalOptimManager)
    manager.initialize()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    optimizer.mng = manager

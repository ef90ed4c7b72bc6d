"""Builds optimizers from presets and parameter groups, and checks the YAML's arguments of both."""

from __future__ import annotations

import importlib.util
import inspect
import re
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
from toolkit.optim.presets import PRESETS
from toolkit.optim.schedules import peak_rate, start_momentum

_LAYER = re.compile(r"^(?:.*?\.)?\d+(?=\.)")
"""A parameter's layer: its name up to the first number, the index in the outermost list of modules."""


def in_head(model: nn.Module) -> set[str]:
    """Returns the names of the parameters outside the base model, except a head that is tied to the embeddings."""
    prefix = getattr(model, "base_model_prefix", "")
    names = [name for name, _ in model.named_parameters()]
    if prefix and any(f".{prefix}." in f".{name}" for name in names):
        return {name for name in names if f".{prefix}." not in f".{name}"}
    find = getattr(model, "get_output_embeddings", None)
    output = find() if find is not None else None
    own = {id(p) for p in output.parameters()} - _embeddings(model) if output is not None else set()
    return {name for name, parameter in model.named_parameters() if id(parameter) in own}


def _embeddings(model: nn.Module) -> set[int]:
    """Returns the `id` of each embedding weight."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}


def without_decay(model: nn.Module) -> set[str]:
    """Returns the names without weight decay: biases, norms, vectors and scalars (as in BERT, arXiv 1810.04805)."""
    found = {name for name, p in model.named_parameters() if p.ndim <= 1 or name.endswith("bias")}
    for path, module in model.named_modules():
        if "norm" in type(module).__name__.lower():
            found |= {f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters(recurse=False)}
    return found


def depths(model: nn.Module) -> tuple[dict[str, int], int]:
    """Returns the depth of each parameter of the base model, and the number of layers.

    Embeddings, and parameters before the first layer, have depth 0. Layers count from 1 in the order of registration,
    decoders after encoders. Parameters outside any layer (a final norm, a pooler) have the depth of the layer before.
    """
    embeddings, heads = _embeddings(model), in_head(model)
    layers: dict[str, int] = {}
    depth, result = 0, {}
    for name, parameter in model.named_parameters():
        if name in heads:
            continue
        if layer := _LAYER.match(name):
            depth = layers.setdefault(layer.group(), len(layers) + 1)
        result[name] = 0 if layer is None and id(parameter) in embeddings else depth
    return result, len(layers)


def rates(model: nn.Module, train: TrainConfig, peak: float) -> dict[str, float]:
    """Returns the peak learning rate of each parameter by its name.

    Raises ConfigError if a rate is configured for the head or the layers, and the model has none.
    """
    result = {name: peak for name, _ in model.named_parameters()}
    if train.layerwise_lr_decay < 1:
        depth, num_layers = depths(model)
        if num_layers == 0:
            raise ConfigError(["train.layerwise_lr_decay: no layers were found in this model; remove it"])
        for name, each in depth.items():
            result[name] = peak * train.layerwise_lr_decay ** (num_layers + 1 - each)
    if train.head_learning_rate is not None:
        heads = in_head(model)
        if not heads:
            raise ConfigError([
                "train.head_learning_rate: this model has no parameters outside its base model (its output is tied to "
                "its embeddings); remove it"
            ])  # fmt: skip
        result |= dict.fromkeys(heads, train.head_learning_rate)
    return result


def parameter_groups(
    model: nn.Module, train: TrainConfig, peak: float, outline: nn.Module | None = None
) -> list[dict[str, Any]]:
    """Groups trainable parameters by learning rate, by weight decay, and for Muon by whether they are hidden matrices.

    The first group, whose rate is logged, is the one with the rate closest to the peak. With an `outline`, the complete
    model of which other processes train some parameters, the groups are the outline's, each with the parameters of
    `model` only, so a group may be empty. Raises ConfigError as `rates`.
    """
    if outline is not None:
        own = dict(model.named_parameters())
        names = {id(parameter): name for name, parameter in outline.named_parameters()}
        groups = parameter_groups(outline, train, peak)
        members = [[names[id(parameter)] for parameter in group["params"]] for group in groups]
        return [
            {**group, "params": [own[name] for name in part if name in own]}
            for group, part in zip(groups, members, strict=True)
        ]
    rate, exempt = rates(model, train, peak), without_decay(model)
    apart = _embeddings(model) | {id(model.get_parameter(name)) for name in in_head(model)}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        settings: dict[str, Any] = {"lr": rate[name], "weight_decay": 0.0 if name in exempt else train.weight_decay}
        if PRESETS[train.optim].takes_matrices:
            settings["matrices"] = parameter.ndim == 2 and name not in exempt and id(parameter) not in apart
        kind = (abs(rate[name] - peak), name in exempt, *settings.values())
        found.setdefault(kind, {"params": [], **settings})["params"].append(parameter)
    return [found[kind] for kind in sorted(found)]


_OWN_KEYS = {"params", "lr", "weight_decay"}


def constructor(optim: str) -> type[Optimizer]:
    """Imports an optimizer's class; a library that is missing or too old is a ConfigError."""
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
    """Builds the optimizer named by `train.optim` for the unwrapped model; arguments as for `parameter_groups`.

    Raises ConfigError if the optimizer is not installed or rejects the value of an argument, or a rate is configured
    for a head or layers that the model does not have.
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

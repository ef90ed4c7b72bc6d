"""Parameter groups: weight decay, learning rate, and hidden matrices."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from toolkit.base.errors import ConfigError
from toolkit.config.sections import TrainConfig
from toolkit.optim.presets import PRESETS

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
    """Returns the names of the parameters without weight decay: biases, normalisation layers, vectors and scalars.

    As in BERT's training (Devlin et al. 2019, arXiv 1810.04805).
    """
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

    Raises:
        ConfigError: if a rate is configured for the head or the layers, and the model has none.
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

    The first group, whose rate is logged, is the one with the rate closest to the peak.

    Args:
        model: the unwrapped model.
        train: the YAML's `train` section.
        peak: the peak learning rate.
        outline: the complete model, if other processes train some of its parameters. The groups are those of the
            complete model, each with the parameters of `model` only, so a group may be empty.

    Raises:
        ConfigError: as `rates`.
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

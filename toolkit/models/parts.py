"""Finds, counts and freezes the parts of a model, and limits a head to the positions that have labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from toolkit.api.batch import needed
from toolkit.base.errors import ConfigError
from toolkit.config.messages import did_you_mean
from toolkit.config.sections import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


POOLER = "pooler"
"""Name of the pooler: part of the base model, but often newly initialised like the head, and trained like it."""


def is_bare(model: PreTrainedModel) -> bool:
    """Whether a model is a backbone without a head, as `AutoModel` builds."""
    import transformers

    kinds: Any = transformers.AutoModel._model_mapping.get(type(model.config), ())
    return isinstance(model, kinds)


def backbone(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Returns the pretrained parts by name: `base_model_prefix`, all of a bare model, or parts with repeated layers."""
    base = getattr(model, model.base_model_prefix, None)
    if isinstance(base, nn.Module):
        return {model.base_model_prefix: base}
    if is_bare(model):
        return dict(model.named_children())
    return {
        name: part
        for name, part in model.named_children()
        if any(isinstance(module, nn.ModuleList) for module in part.modules())
    }


def head_modules(model: PreTrainedModel) -> list[str]:
    """Returns the modules between backbone and outputs; none for language models, whose output is pretrained."""
    parts = backbone(model)
    if model.get_output_embeddings() is not None:
        return []
    pooler = [f"{name}.{POOLER}" for name, part in parts.items() if _has_parameters(getattr(part, POOLER, None))]
    return pooler + [name for name, module in model.named_children() if name not in parts and _has_parameters(module)]


def backbone_parameters(model: PreTrainedModel) -> list[str]:
    """Returns the names of the backbone's parameters, including those shared with the head, such as embeddings."""
    head = tuple(f"{name}." for name in head_modules(model))
    inside = {
        id(parameter)
        for name, part in backbone(model).items()
        for inner, parameter in part.named_parameters()
        if not f"{name}.{inner}".startswith(head)
    }
    return [name for name, parameter in model.named_parameters() if id(parameter) in inside]


def repeated_linears(model: PreTrainedModel) -> list[str]:
    """Returns the full names of the linear layers (attention and MLP) in the backbone's repeated layers."""
    from transformers.pytorch_utils import Conv1D

    found = []
    for part_name, part in backbone(model).items():
        lists = tuple(f"{name}." for name, module in part.named_modules() if isinstance(module, nn.ModuleList))
        # torch's attention module uses its output layer's weight directly, which would bypass an adapter.
        fused = tuple(f"{name}." for name, module in part.named_modules() if isinstance(module, nn.MultiheadAttention))
        found += [
            f"{part_name}.{name}"
            for name, module in part.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and name.startswith(lists) and not name.startswith(fused)
        ]
    return found


def suffixes(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the shortest dotted suffixes of the wanted names that match none of the other names."""
    wanted = set(wanted)
    others = {end for name in set(names) - wanted for end in _ends(name)}
    return sorted({next((end for end in _ends(name) if end not in others), name) for name in wanted})


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Returns the number of trained parameters and of all parameters; packed 4-bit weights are counted unpacked."""
    counts = [
        (parameter.numel() * (2 if type(parameter).__name__ == "Params4bit" else 1), parameter.requires_grad)
        for parameter in model.parameters()
    ]
    return sum(count for count, trained in counts if trained), sum(count for count, _ in counts)


def saved_bytes(model: nn.Module, adapters: bool = False) -> int:
    """Returns the bytes of the weights that a model's folder holds: all of them, or the trained ones of adapters."""
    parameters = (each for each in model.parameters() if each.requires_grad or not adapters)
    return sum(each.numel() * each.element_size() for each in parameters)


def _ends(name: str) -> list[str]:
    """Returns the dotted suffixes of a name, shortest first: `c`, `b.c`, `a.b.c`."""
    words = name.split(".")
    return [".".join(words[start:]) for start in reversed(range(len(words)))]


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())


def freeze_modules(model: nn.Module, names: Iterable[str]) -> None:
    """Disables gradients of all modules with these names, at any depth."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in names:
            module.requires_grad_(False)


def freeze(model: PreTrainedModel, settings: ModelConfig) -> None:
    """Disables gradients of all parameters that match `model.freeze` but not `model.unfreeze`.

    Parameters that are unfrozen later keep `requires_grad`, so that the optimizer and the gradient exchange include
    them; see `toolkit.engine.callbacks.unfreezing`. Raises ConfigError if a pattern matches nothing, or no parameter
    would be trained at the start.
    """
    frozen = frozen_parameters(model, settings)
    later = {name for names in later_parameters(model, settings).values() for name in names}
    parameters = dict(model.named_parameters())
    if frozen and all(name in frozen for name, parameter in parameters.items() if parameter.requires_grad):
        what = "no parameter would be trained" + (" before model.unfreeze" if later else "")
        raise ConfigError([f"model.freeze: received {settings.freeze!r}, so {what}; exclude the head, for instance"])
    for name in frozen - later:
        parameters[name].requires_grad_(False)


def frozen_parameters(model: PreTrainedModel, settings: ModelConfig) -> set[str]:
    """Returns the parameters that match `model.freeze` by name; a pattern without any is a ConfigError."""
    words = [settings.freeze] if isinstance(settings.freeze, str) else settings.freeze
    found: set[str] = set()
    patterns = []
    for word in words:
        if word == "backbone":
            found.update(backbone_parameters(model))
        elif word == "feature_extractor":
            found.update(_feature_encoder(model))
        else:
            patterns.append(word)
    return found | _matching("model.freeze", patterns, [name for name, _ in model.named_parameters()])


def later_parameters(model: PreTrainedModel, settings: ModelConfig) -> dict[str, set[str]]:
    """Returns the parameters that are unfrozen later, by the moment in the YAML.

    Raises ConfigError if a pattern matches no frozen parameter.
    """
    frozen = sorted(frozen_parameters(model, settings)) if settings.unfreeze else []
    return {
        moment: _matching(f"model.unfreeze.{moment}", patterns, frozen)
        for moment, patterns in settings.unfreeze.items()
    }


def step_of(moment: str, steps_per_epoch: int) -> int:
    """Returns the step after which the parameters of a moment of `model.unfreeze` are trained."""
    unit, _, number = moment.partition("_")
    return int(number) * (steps_per_epoch if unit == "epoch" else 1)


def _matching(key: str, patterns: Iterable[str], names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    problems = []
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            frozen = "" if key == "model.freeze" else " that is frozen"
            near = did_you_mean(pattern, list(names)) or f"; there are {', '.join(_beginnings(names))}"
            problems.append(f"{key}: {pattern!r} matches no parameter{frozen}{near}")
        found |= matched
    if problems:
        raise ConfigError(problems)
    return found


def _beginnings(names: Iterable[str]) -> list[str]:
    """Returns patterns of the first two parts of each name, which show the structure of a model."""
    return sorted({".".join(name.split(".")[:2]) + (".*" if name.count(".") > 1 else "") for name in names})


def _feature_encoder(model: PreTrainedModel) -> set[str]:
    """Returns the names of the parameters that transformers freezes as a speech model's feature encoder."""
    switch_off: Any = getattr(model, "freeze_feature_encoder", None)
    if switch_off is None:
        raise ConfigError([
            f"model.freeze: received 'feature_extractor', but {type(model).__name__} has none that transformers can "
            "freeze (Wav2Vec2 and similar models have one); use parameter patterns instead"
        ])  # fmt: skip
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    model.requires_grad_(True)
    switch_off()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(before[name])
    return frozen


def head_at_labels(model: Any) -> None:
    """Lets a model's output head compute logits only where the current pass needs them.

    They are then `[1, n, vocabulary]`, in the order of the positions. What a model does with its logits (a bias, a
    factor, a soft cap) is the same for every position. Models whose head is no module of its own, or has inputs that
    are not aligned with the labels, compute all logits.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(head, nn.Module):
        head.register_forward_pre_hook(_select)


def _select(head: nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
    places, hidden = needed(), arguments[0]
    if places is None or hidden.dim() != 3 or hidden.shape[:2] != places.shape:
        return None
    if len(places.positions) == places.shape.numel():
        return None
    selected: Tensor = hidden.flatten(0, 1).index_select(0, places.positions)
    return (selected[None], *arguments[1:])

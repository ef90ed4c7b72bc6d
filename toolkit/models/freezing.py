"""Freezes parameters according to `model.freeze` and `model.unfreeze`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import ConfigError
from toolkit.config.messages import did_you_mean
from toolkit.config.sections import ModelConfig
from toolkit.models.parts import backbone_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def freeze(model: PreTrainedModel, settings: ModelConfig) -> None:
    """Disables gradients of all parameters that match `model.freeze` but not `model.unfreeze`.

    Parameters that are unfrozen later keep `requires_grad`, so that the optimizer and the gradient exchange include
    them; see `toolkit.engine.callbacks.unfreezing`.

    Raises:
        ConfigError: if a pattern matches nothing, or no parameter would be trained at the start.
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
    """Returns the names of the parameters that match `model.freeze`.

    Raises:
        ConfigError: if a pattern matches nothing.
    """
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
    """Returns the names of the parameters that are unfrozen later, by the moment in the YAML.

    Raises:
        ConfigError: if a pattern matches no frozen parameter.
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

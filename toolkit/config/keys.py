"""The keys of a configuration: sections, their fields and types, and values by dotted key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast, get_type_hints

from toolkit.config.messages import Key
from toolkit.config.parallel_section import ParallelConfig
from toolkit.config.sections import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    TopLevel,
    TrackingConfig,
    TrainConfig,
    TrainerConfig,
)

_TOP = ("engine", "offline_dir", "output_dir", "seed")


def section_types(options: type) -> dict[str, type]:
    """Returns the type of each section, in the order in which a configuration is written."""
    return {
        "task": options,
        "model": ModelConfig,
        "data": DataConfig,
        "train": TrainConfig,
        "parallel": ParallelConfig,
        "eval": EvalConfig,
        "checkpoint": CheckpointConfig,
        "tracking": TrackingConfig,
        "trainer": TrainerConfig,
    }


def field_types(types: Mapping[str, type]) -> dict[Key, Any]:
    """Returns the annotation of every key, top-level keys first, and each section's type before those of its keys.

    A field of a section may be a dataclass, too: a group of settings, whose keys have three parts.
    """
    top = _hints(TopLevel)
    hints: dict[Key, Any] = {(name,): top[name] for name in _TOP}
    for name, kind in types.items():
        hints |= _group((name,), kind)
    return hints


def _group(key: Key, kind: type) -> dict[Key, Any]:
    """Returns the annotations of a section or a group of settings, and of all keys in it."""
    hints: dict[Key, Any] = {key: kind}
    for name, hint in _hints(kind).items():
        inner = (*key, name)
        hints |= _group(inner, cast(type, hint)) if dataclasses.is_dataclass(hint) else {inner: hint}
    return hints


def flatten(config: Config) -> dict[str, Any]:
    """Returns every setting by its dotted key, in block order; each entry of a mapping has its own key."""
    return {".".join(key): value for key, value in _flat(config)}


def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _flat(config: Config) -> Iterator[tuple[Key, Any]]:
    yield from (((name,), getattr(config, name)) for name in _TOP)
    for section in section_types(type(config.task)):
        yield from _flat_part((section,), getattr(config, section))


def _flat_part(key: Key, value: Any) -> Iterator[tuple[Key, Any]]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _flat_part((*key, field.name), getattr(value, field.name))
    elif isinstance(value, Mapping) and value:
        yield from (((*key, str(name)), entry) for name, entry in value.items())
    else:
        yield key, value

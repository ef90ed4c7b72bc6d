"""Settings by dotted key: their types, `key=value` overrides, and configurations as YAML."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cache
from types import NoneType
from typing import Any, cast, get_type_hints

from ruamel.yaml import YAML

from toolkit.config import sections
from toolkit.config.messages import Key, expected, mapping_values, members, nearest_key, takes_text
from toolkit.config.source import Settings, Source, is_text
from toolkit.config.train import ParallelConfig

_TOP = ("callbacks", "engine", "offline_dir", "output_dir", "seed")


def section_types(options: type) -> dict[str, type]:
    """Returns the type of each section, in the order in which a configuration is written."""
    return {
        "task": options,
        "model": sections.ModelConfig,
        "data": sections.DataConfig,
        "train": sections.TrainConfig,
        "parallel": ParallelConfig,
        "eval": sections.EvalConfig,
        "checkpoint": sections.CheckpointConfig,
        "tracking": sections.TrackingConfig,
        "trainer": sections.TrainerConfig,
    }


def field_types(types: Mapping[str, type]) -> dict[Key, Any]:
    """Returns the annotation of every key, top-level keys first, and each section's type before those of its keys.

    A field of a section may be a dataclass, too: a group of settings, whose keys have three parts.
    """
    top = _hints(sections.TopLevel)
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


def flatten(config: sections.Config) -> dict[str, Any]:
    """Returns every setting by its dotted key, in block order; each entry of a mapping has its own key."""
    return {".".join(key): value for key, value in _flat(config)}


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _flat(config: sections.Config) -> Iterator[tuple[Key, Any]]:
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


_LINE_BREAKS = frozenset("\x85\u2028\u2029")
"""Characters that ruamel.yaml folds into spaces unless it writes all text beyond ASCII in escapes."""


def dump_config(config: sections.Config) -> str:
    """Returns the configuration as YAML, in block order; `load_config` reads it back as an equal configuration."""
    document: dict[str, Any] = {name: getattr(config, name) for name in _TOP}
    document |= {name: dataclasses.asdict(getattr(config, name)) for name in section_types(type(config.task))}
    if config.train.global_batch_size is not None:
        document["train"]["gradient_accumulation_steps"] = None  # another number of processes has another one
    return to_yaml(document, flow=False)


def to_yaml(value: Any, flow: bool = True) -> str:
    """Returns a plain value as YAML 1.2, on one line if `flow`."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = flow
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 2**31  # no line is broken
    yaml.allow_unicode = _LINE_BREAKS.isdisjoint(json.dumps(value, ensure_ascii=False))
    stream = io.StringIO()
    yaml.dump(value, stream)
    text = stream.getvalue()
    return text.removesuffix("\n").removesuffix("\n...") if flow else text


_RIVALS = {"name_or_path": "from_config", "from_config": "name_or_path"}


def apply_overrides(settings: Settings, overrides: Sequence[str], fields: Mapping[Key, Any]) -> None:
    """Applies overrides (`section.key=value`) in order; errors in them are added to the problems of `settings`.

    The value of a text field is taken as it is; every other value is YAML 1.2. An override of one of
    `model.name_or_path` and `model.from_config` clears the file's value of the other.
    """
    named: dict[str, Source] = {}
    for text in overrides:
        shown = text.encode("utf-8", "backslashreplace").decode()
        source = Source("override", f"override {shown}")
        key = _apply(settings, text, source, fields)
        if key and key[0] == "model" and key[1] in _RIVALS:
            named[key[1]] = source
    chosen = {name: source for name, source in named.items() if settings.get(("model", name)) is not None}
    for name, source in chosen.items():
        other = ("model", _RIVALS[name])
        if other[1] not in chosen and settings.get(other) is not None:
            settings.set(other, None, source)


def _apply(settings: Settings, text: str, source: Source, fields: Mapping[Key, Any]) -> Key | None:
    """Applies one override and returns its key, or reports its problem and returns None."""
    name, equals, value = text.partition("=")
    key = tuple(name.split("."))
    field = max((key[:size] for size in range(1, len(key) + 1) if key[:size] in fields), key=len, default=key[:1])
    hint = fields.get(field)
    for _ in key[len(field) :]:
        hint = mapping_values(hint)
    if not is_text(text):
        settings.problems.append(f"{source.place}: not UTF-8 text")
    elif not equals:
        meant = nearest_key(key, list(fields))
        settings.problems.append(f"{source.place}: no '='; write {'.'.join(meant) if meant else 'section.key'}=VALUE")
    elif not all(key):
        settings.report(key, "a part of the key is empty; write section.key=value", source)
    elif hint is None and len(key) > len(field) > 1 and not is_dataclass(fields[field]):
        settings.report(key, f"{'.'.join(field)} has no keys of its own, expected {expected(fields[field])}", source)
    elif hint is None:
        settings.report_unknown(key, list(fields), source)
    elif is_dataclass(hint):
        settings.report(key, f"this is a section; set one of its keys ({name}.key=value)", source)
    else:
        usable, parsed = _value(settings, value, key, hint, source)
        if usable:
            settings.set(key, parsed, source)
            return key
    return None


def _value(settings: Settings, text: str, key: Key, hint: Any, source: Source) -> tuple[bool, Any]:
    """Returns whether the text is a usable value, and the value."""
    a_file = {str, list[str]} <= {*members(hint)} and not text.lstrip().startswith("[")
    if not (a_file or takes_text(hint)):
        if text.strip():
            return settings.parse(text, key, source)
        settings.report(key, f"no value after '=', expected {expected(hint)}", source)
        return False, None
    return True, None if text == "null" and NoneType in members(hint) else text


def with_values(config: sections.Config, overrides: Sequence[str]) -> sections.Config:
    """Returns a configuration with overrides of sections' fields: whole numbers, names and switches that are valid."""
    words = {"true": True, "false": False, "null": None}
    for text in overrides:
        key, _, value = text.partition("=")
        section, name = key.split(".")
        new = int(value) if value.isdecimal() else words.get(value, value)
        config = replace(config, **{section: replace(getattr(config, section), **{name: new})})
    return config


def written(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as overrides; text is not quoted."""
    return [f"{key}={value if isinstance(value, str) else to_yaml(value)}" for key, value in settings.items()]

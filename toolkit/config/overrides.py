"""Applies `section.key=value` from the command line over the values of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType
from typing import Any

from toolkit.config.dump import to_yaml
from toolkit.config.messages import Key, expected, mapping_values, members, nearest_key, takes_text
from toolkit.config.source import Settings, Source, is_text

_RIVALS = {"name_or_path": "from_config", "from_config": "name_or_path"}


def apply_overrides(settings: Settings, overrides: Sequence[str], fields: Mapping[Key, Any]) -> None:
    """Applies overrides in order; errors in them are added to the problems of `settings`.

    The value of a text field is taken as it is; every other value is YAML 1.2. An override of one of
    `model.name_or_path` and `model.from_config` clears the file's value of the other.

    Args:
        settings: values of the file.
        overrides: `section.key=value` each.
        fields: annotation of every key and section.
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
    if not takes_text(hint):
        if text.strip():
            return settings.parse(text, key, source)
        settings.report(key, f"no value after '=', expected {expected(hint)}", source)
        return False, None
    return True, None if text == "null" and NoneType in members(hint) else text


def written(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as overrides; text is not quoted."""
    return [f"{key}={value if isinstance(value, str) else to_yaml(value)}" for key, value in settings.items()]

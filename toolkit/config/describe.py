"""Describes settings: help on the command line, JSON Schema for editors, and where each value of a run came from."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter

from toolkit.config.keys import field_types, flatten, section_types, to_yaml
from toolkit.config.load import Loaded
from toolkit.config.messages import Key, expected
from toolkit.config.sections import Config, TopLevel

WIDTH = 80
_KEY_WIDTH, _ORIGIN_WIDTH = 36, 8


@dataclass(frozen=True)
class Change:
    """A setting whose value is not its default."""

    key: str  # dotted key
    value: Any  # its value
    default: Any  # its default; `dataclasses.MISSING` if it must be given
    kind: type  # the dataclass that declares it

    @property
    def help(self) -> str:
        """What the setting does."""
        properties = _described(self.kind)["properties"]
        return str(properties[self.key.rpartition(".")[2]].get("description", ""))


@dataclass(frozen=True)
class Entry:
    """A key of a configuration."""

    key: str  # dotted key
    help: str  # what it does, or what is in the section
    accepts: str | None = None  # the values that it accepts; None for a section or a group of settings
    default: str = ""  # its default, in words


def changes(config: Config) -> list[Change]:
    """Returns all settings that are not at their defaults, in block order."""
    top = [(field.name, getattr(config, field.name)) for field in dataclasses.fields(TopLevel)]
    found = [Change(name, value, _default_value(TopLevel, name), TopLevel) for name, value in top]
    for name in section_types(type(config.task)):
        found += _settings(name, getattr(config, name))
    return [change for change in found if change.value != change.default]


def _settings(prefix: str, section: Any) -> Iterator[Change]:
    for field in dataclasses.fields(section):
        key, value = f"{prefix}.{field.name}", getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _settings(key, value)
        else:
            yield Change(key, value, _default_value(type(section), field.name), type(section))


def schema(options: type) -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of a file for a task with these options, for editors."""
    whole = {
        **_section_schema(TopLevel),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "finetune-toolkit",
    }
    definitions = whole.pop("$defs", {})
    for name, kind in section_types(options).items():
        section = _section_schema(kind)
        definitions |= section.pop("$defs", {})
        if "required" in section:
            whole["required"].append(name)
        else:
            section["type"] = ["object", "null"]  # a section whose keys are all commented out
        whole["properties"][name] = section
    return {**whole, "$defs": definitions} if definitions else whole


def help_text(options: type, recipe: str) -> str:
    """Returns the help of a recipe: every key with its type, default and meaning, wrapped at 80 columns."""
    lines = [
        "Usage:",
        f"  toolkit train {recipe} --config FILE [--processes N] [section.key=value ...]",
        "",
        *textwrap.wrap(
            "FILE is YAML with the keys below; section.key=value after it changes one of them. Keys "
            "that begin with x- are ignored; use them for notes and anchors.",
            WIDTH,
        ),
        "",
    ]
    for entry in entries(options):
        if entry.accepts is None:
            lines += ["", *textwrap.wrap(f"{entry.key}: {entry.help}", WIDTH), ""]
            continue
        lines += [f"  {entry.key}", *_indented(f"{entry.accepts}; {entry.default}"), *_indented(entry.help)]
    return "\n".join(lines) + "\n"


def entries(options: type) -> Iterator[Entry]:
    """Yields every key of a configuration, in block order: a section or a group of settings before those in it."""
    kinds: dict[Key, type] = {(): TopLevel}
    for key, hint in field_types(section_types(options)).items():
        name = ".".join(key)
        if dataclasses.is_dataclass(hint):
            kinds[key] = cast(type, hint)
            yield Entry(name, _docstring(kinds[key]))
            continue
        kind = kinds[key[:-1]]
        text = _described(kind)["properties"][key[-1]].get("description", "")
        yield Entry(name, text, expected(hint), _default(kind, key[-1]))


def explain_text(loaded: Loaded) -> str:
    """Returns a table of every key, its value and the origin of the value, 80 columns wide."""
    lines = [*_row("key", "value", "origin"), "-" * WIDTH]
    section = ""
    for key, value in flatten(loaded.config).items():
        if (begins := key.partition(".")[0] if "." in key else "") != section:
            section = begins
            lines.append("")
        lines += _row(key, to_yaml(value), loaded.origins[key])
    return "\n".join(lines) + "\n"


@cache
def _described(kind: type) -> dict[str, Any]:
    """Returns `_section_schema(kind)`, cached; do not change the result."""
    return _section_schema(kind)


def _section_schema(kind: type) -> dict[str, Any]:
    described = TypeAdapter(kind).json_schema()
    described["description"] = _docstring(kind)
    for base in filter(dataclasses.is_dataclass, kind.__mro__[1:]):  # pydantic reads the docstrings of one class
        for name, setting in _described(base)["properties"].items():
            described["properties"][name].setdefault("description", setting.get("description", ""))
    for setting in described["properties"].values():
        setting.pop("title", None)
        if "description" in setting:
            setting["description"] = " ".join(setting["description"].split())
    return {**described, "patternProperties": {"^x-": {}}}


def _docstring(kind: type) -> str:
    text = inspect.cleandoc(kind.__doc__ or "")
    generated = text.startswith(f"{kind.__name__}(")  # by dataclass
    return "" if generated else " ".join(text.split())


def _default(kind: type, name: str) -> str:
    value = _default_value(kind, name)
    return "must be given" if value is dataclasses.MISSING else f"default: {to_yaml(value)}"


def _default_value(kind: type, name: str) -> Any:
    field = next(field for field in dataclasses.fields(kind) if field.name == name)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _row(key: str, value: str, origin: str) -> Iterator[str]:
    width = WIDTH - _KEY_WIDTH - _ORIGIN_WIDTH - 2
    parts = textwrap.wrap(value, width, break_on_hyphens=False) or [""]
    if len(key) > _KEY_WIDTH:
        yield key
        key = ""
    yield f"{key:{_KEY_WIDTH}} {parts[0]:{width}} {origin}"
    yield from (f"{'':{_KEY_WIDTH}} {part}" for part in parts[1:])

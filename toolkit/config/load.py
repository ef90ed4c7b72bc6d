"""One YAML file, overrides and the launcher become one `Config`; every problem is found before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from toolkit.base.errors import ConfigError
from toolkit.config.keys import _TOP, _flat, _hints, field_types, section_types
from toolkit.config.messages import Key, choices, describe_errors, did_you_mean, join, show
from toolkit.config.overrides import apply_overrides
from toolkit.config.paths import path_problems
from toolkit.config.rule import Rule, conflicts
from toolkit.config.sections import (
    Config,
    TopLevel,
    TrainConfig,
)
from toolkit.config.source import Origin, Settings, Source, read_file, read_sections

if TYPE_CHECKING:
    from toolkit.config.column import Column

LAUNCHER: dict[str, tuple[str, str, Any]] = {
    "mixed_precision": ("ACCELERATE_MIXED_PRECISION", "no", "no"),
    "gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "auto", 1),
}
"""Field of `train`: the launcher's variable, its value when nobody asked for anything, our default.
`accelerate launch` always sets the precision, to `no` unless it is told otherwise."""


@dataclass(frozen=True)
class Loaded:
    """A valid configuration.

    Args:
        config: all settings; nothing is left to the launcher any more.
        origins: for every key of `flatten(config)`, where its value came from.
    """

    config: Config
    origins: Mapping[str, Origin]


def load_config(
    options: type,
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    columns: Mapping[str, Column] | None = None,
    check_files: bool = True,
    rules: Sequence[Rule] = (),
) -> Loaded:
    """Reads and checks a configuration.

    Args:
        options: the task's options, a frozen dataclass with `__pydantic_config__ = STRICT`; a method
            `problems() -> list[str]`, if it has one, names impossible combinations, each beginning with a dotted key.
        file: YAML 1.2, in UTF-8; or what it would hold, as a dictionary.
        overrides: `section.key=value` each; later ones win.
        environ: where the launcher's choices are read.
        columns: the task's columns by name, which `data.columns` may rename; None leaves them unchecked.
        check_files: whether the files and folders that are named must be there; not so for a run that is over.
        rules: settings that cannot go together.

    Raises:
        ConfigError: with all problems that were found.
    """
    types = section_types(options)
    fields = field_types(types)
    settings = read_sections(file) if isinstance(file, Mapping) else read_file(Path(file))
    _check_keys(settings, settings.values, fields)
    apply_overrides(settings, overrides, fields)
    _ask_launcher(settings, environ)
    _check_columns(settings, columns)
    parts: dict[str, Any] = {
        name: _validate(settings, kind, settings.values.get(name, {}), (name,), fields) for name, kind in types.items()
    }
    outside = {name: settings.values[name] for name in _TOP if name in settings.values}
    top = _validate(settings, TopLevel, outside, (), fields)
    config = Config(**parts | {name: getattr(top, name, None) for name in _TOP})
    _check_used_columns(settings, config, columns)
    _check_combinations(settings, config, environ, check_files, rules)
    if settings.problems:
        raise ConfigError(settings.problems)
    config = _with_home(config)
    return Loaded(config, {".".join(key): settings.origin(key) for key, _ in _flat(config)})


def _with_home(config: Config) -> Config:
    """Puts the home folder in place of a path's `~`, which the shell does only where a word begins with it."""

    def home(section: Any, *names: str) -> Any:
        paths = {name: getattr(section, name) for name in names}
        changes = {name: str(Path(path).expanduser()) for name, path in paths.items() if path and path[0] == "~"}
        return dataclasses.replace(section, **changes)

    return dataclasses.replace(
        home(config, "output_dir"),
        model=home(config.model, "name_or_path"),
        data=home(config.data, "train_file", "validation_file", "test_file"),
        checkpoint=home(config.checkpoint, "resume"),
    )


def _check_keys(settings: Settings, values: dict[str, Any], fields: Mapping[Key, Any], prefix: Key = ()) -> None:
    """Reports keys of the file that do not exist and takes them out, so that the rest can be checked."""
    for name, value in list(values.items()):
        key = (*prefix, name)
        if key not in fields:
            settings.report_unknown(key, list(fields))
            del values[name]
        elif dataclasses.is_dataclass(fields[key]) and isinstance(value, dict):
            _check_keys(settings, value, fields, key)
        elif dataclasses.is_dataclass(fields[key]):
            if value is not None:
                settings.report(key, f"received {show(value)}, expected a mapping: its keys, indented, below it")
            del values[name]


def _ask_launcher(settings: Settings, environ: Mapping[str, str]) -> None:
    """Fills in what the file leaves to the launcher; refuses what both set differently."""
    hints = _hints(TrainConfig)
    for field, (variable, silent, default) in LAUNCHER.items():
        key = ("train", field)
        text, own = environ.get(variable, "").strip().lower(), settings.get(key)
        asked = int(text) if text.isdecimal() else text
        allowed = choices(hints[field])
        if asked in ("", silent):
            if own is None:
                settings.set(key, default, settings.default)
        elif own is None or (allowed and asked not in allowed):
            settings.set(key, asked, Source("launcher", f"launcher {variable}={text}"))
        elif asked != own:
            settings.report(
                key,
                f"received {show(own)}, but the launcher says {show(asked)} ({variable}); set "
                f"train.{field} to null, which means the launcher's value, or start "
                f"`accelerate launch` with --{field} {own}",
            )


def _check_columns(settings: Settings, columns: Mapping[str, Column] | None) -> None:
    given = settings.get(("data", "columns"))
    for name, value in given.items() if isinstance(given, dict) else ():
        key = ("data", "columns", name)
        if columns is not None and name not in columns:
            settings.report(
                key, f"unknown column; this task has {join(list(columns), 'and')}{did_you_mean(name, list(columns))}"
            )
        if isinstance(value, str) and not value.strip():
            settings.report(key, f"received {show(value)}, expected the name of a column of your data")
        elif list(given.values()).index(value) != list(given).index(name):
            settings.report(key, f"received {show(value)}, which another of the task's columns has already")


def _check_used_columns(settings: Settings, config: Config, columns: Mapping[str, Column] | None) -> None:
    if config.task is None or config.data is None:
        return
    for name in config.data.columns:
        if columns is not None and name in columns and not columns[name].used(config.task):
            others = [other for other, column in columns.items() if column.used(config.task)]
            settings.report(
                ("data", "columns", name), f"not read under these task settings, which have {join(others, 'and')}"
            )


def _validate(settings: Settings, kind: type, values: dict[str, Any], prefix: Key, fields: Mapping[Key, Any]) -> Any:
    """The section as `kind`, or None if something in it is wrong, which is reported."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        hints = {key[len(prefix) :]: hint for key, hint in fields.items() if key[: len(prefix)] == prefix}
        for key, message in describe_errors(error, hints, values):
            full = (*prefix, *key)
            if full not in settings.reported or settings.get(full) is not None:  # else: missing, for a known reason
                settings.report(full, message)
        return None


def _check_combinations(
    settings: Settings, config: Config, environ: Mapping[str, str], check_files: bool, rules: Sequence[Rule]
) -> None:
    """Checks what single settings cannot show, as far as the sections concerned are right in themselves."""
    broken = frozenset(key[0] for key in settings.reported if key)
    if not broken.isdisjoint(_TOP):
        broken |= set(_TOP)
    messages = conflicts(rules, config, environ, broken)
    if check_files:
        messages += path_problems(config, broken)
    if "task" not in broken and hasattr(config.task, "problems"):
        messages += config.task.problems()
    for message in messages:
        # The message begins with the keys that it is about; its place is where one was given, at best an override.
        keys = [tuple(word.split(".")) for word in re.findall(r"[\w.]+", message.split(": ")[0])]
        given = [
            source
            for key in keys
            for other, source in settings.sources.items()
            if other[: len(key)] == key and source.origin != "default"
        ]
        given.sort(key=lambda source: source.origin != "override")
        settings.problems.append(f"{(given or [settings.source(keys[0])])[0].place}: {message}")

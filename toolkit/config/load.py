"""Builds a `Config` from a YAML file, overrides and the launcher, and finds every value that is wrong by itself."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolkit.base.errors import ConfigError
from toolkit.base.files import expanded
from toolkit.config.fields import Column
from toolkit.config.keys import _TOP, _flat, apply_overrides, field_types, section_types
from toolkit.config.launcher import ask_launcher, divide_window
from toolkit.config.messages import Key, as_list, describe_errors, did_you_mean, join, mapping_values, show
from toolkit.config.paths import find_fetched_data, find_run_model, find_shipped_data
from toolkit.config.problems import Problem, touching
from toolkit.config.sections import Config, TopLevel
from toolkit.config.source import Origin, Settings, read_file, read_sections
from toolkit.config.templates import is_template, template_problem


@dataclass(frozen=True)
class Loaded:
    """A valid configuration."""

    config: Config  # all settings, those of the launcher included
    origins: Mapping[str, Origin]  # the origin of the value of each key of `flatten(config)`


@dataclass(frozen=True)
class Draft:
    """A configuration as it was read, right or wrong."""

    # all settings; a wrong value is replaced by its default, so that everything else can still be checked
    config: Config
    problems: tuple[str, ...]  # one message per problem
    faulty: frozenset[Key]  # keys whose value is wrong. Problems that follow from their defaults must not be reported
    settings: Settings  # the values as given, and their sources

    def loaded(self) -> Loaded:
        """Returns the configuration if it is valid. Raises ConfigError with all problems, if there are any."""
        if self.problems:
            raise ConfigError(list(self.problems))
        origins = {".".join(key): self.settings.origin(key) for key, _ in _flat(self.config)}
        return Loaded(self.config, origins)

    def located(self, problem: Problem) -> str:
        """Returns a problem's message with the place where one of its settings was given before it, first overrides."""
        keys = [tuple(key.split(".")) for key in problem.keys]
        given = [
            source
            for key in keys
            for other, source in self.settings.sources.items()
            if other[: len(key)] == key and source.origin != "default"
        ]
        given.sort(key=lambda source: source.origin != "override")
        return f"{(given or [self.settings.source(keys[0])])[0].place}: {problem.text}"


STAND_IN = "missing"
"""Replaces required text that is missing, so that everything else can be checked."""


def load_config(
    options: type,
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """Reads a configuration whose values are right, each by itself; arguments are those of `read_config`.

    Raises ConfigError with all problems, if there are any.
    """
    return read_config(options, file, overrides, environ).loaded()


def read_config(
    options: type,
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    columns: Mapping[str, Column] | None = None,
    check_files: bool = True,
) -> Draft:
    """Reads a configuration and checks each value by itself; combinations are checked by `toolkit.checks`.

    Args:
        options: the class of the task's options, a frozen dataclass with `__pydantic_config__ = STRICT`.
        file: a YAML 1.2 file in UTF-8, or its content as a dictionary.
        overrides: `section.key=value` each; later ones win.
        environ: the environment variables, which hold the launcher's choices.
        columns: the task's columns by name, which `data.columns` may rename; None leaves them unchecked.
        check_files: whether data files may be those of `offline_dir`; False for a run that has ended.

    Returns:
        The configuration, with the problems that were found.

    Raises:
        ConfigError: if the file cannot be read at all, or the task's options cannot be built from their defaults.
    """
    types = section_types(options)
    fields = field_types(types)
    settings = read_sections(file) if isinstance(file, Mapping) else read_file(Path(file))
    if not isinstance(file, Mapping):
        find_shipped_data(settings, Path(file))
    _check_keys(settings, settings.values, fields)
    apply_overrides(settings, overrides, fields)
    if check_files:
        find_fetched_data(settings)
        find_run_model(settings)
    ask_launcher(settings, environ)
    _accept_single_values(settings, fields)
    _check_columns(settings, columns)
    parts: dict[str, Any] = {
        name: _validate(settings, kind, settings.values.get(name, {}), (name,), fields) for name, kind in types.items()
    }
    outside = {name: settings.values[name] for name in _TOP if name in settings.values}
    top = _validate(settings, TopLevel, outside, (), fields)
    config = Config(**parts | {name: getattr(top, name) for name in _TOP})
    _check_used_columns(settings, config, columns)
    config = divide_window(config, settings, environ)
    return Draft(_with_home(config), tuple(settings.problems), frozenset(settings.reported), settings)


def _with_home(config: Config) -> Config:
    """Expands `~` in paths; the shell expands it only at the beginning of a word."""

    def at_home(path: Any) -> Any:
        return [*map(at_home, path)] if type(path) is list else str(expanded(path)) if path and path[0] == "~" else path

    def home(section: Any, *names: str) -> Any:
        return dataclasses.replace(section, **{name: at_home(getattr(section, name)) for name in names})

    return dataclasses.replace(
        home(config, "output_dir", "offline_dir"),
        model=home(config.model, "name_or_path"),
        data=home(config.data, "train_file", "validation_file", "test_file", "stage_to"),
        checkpoint=home(config.checkpoint, "resume"),
    )


def _check_keys(settings: Settings, values: dict[str, Any], fields: Mapping[Key, Any], prefix: Key = ()) -> None:
    """Reports unknown keys of the file and removes them, so that the rest can be checked."""
    for name, value in list(values.items()):
        key = (*prefix, name)
        if key not in fields:
            settings.report_unknown(key, list(fields))
            del values[name]
        elif dataclasses.is_dataclass(fields[key]) and isinstance(value, dict):
            _check_keys(settings, value, fields, key)
        elif dataclasses.is_dataclass(fields[key]):
            if value is not None:
                settings.report(key, f"received {show(value)}, expected a mapping: its keys, indented below it")
            del values[name]


def _accept_single_values(settings: Settings, fields: Mapping[Key, Any]) -> None:
    """Turns a single value into a list of one wherever a list is expected, also in the values of a mapping."""
    for key, hint in fields.items():
        value = settings.get(key)
        if isinstance(value, dict):
            value |= {name: as_list(entry, mapping_values(hint)) for name, entry in value.items()}
        elif (listed := as_list(value, hint)) is not value:
            settings.set(key, listed, settings.source(key))


def _check_columns(settings: Settings, columns: Mapping[str, Column] | None) -> None:
    given = settings.get(("data", "columns"))
    for name, value in list(given.items()) if isinstance(given, dict) else ():
        key = ("data", "columns", name)
        if isinstance(value, str) and is_template(value):
            value = given[name] = value.replace("\\n", "\n")  # only double quotes make a line break of it in YAML
        if columns is not None and name not in columns:
            settings.report(
                key, f"unknown column; this task has {join(list(columns), 'and')}{did_you_mean(name, list(columns))}"
            )
        if isinstance(value, str) and not value.strip():
            settings.report(key, f"received {show(value)}, expected the name of a column of your data")
        elif isinstance(value, dict):
            del given[name]
            template = "".join(f"{{{part}}}" for part in value)
            settings.report(key, f'YAML reads braces without quotes as a mapping; quote the template: "{template}"')
        elif isinstance(value, str) and (problem := template_problem(value)):
            settings.report(key, f"received {show(value)}: {problem}")
        elif isinstance(value, str) and is_template(value) and columns and name in columns and columns[name].file:
            settings.report(key, f"received {show(value)}, but a template makes text, and this column holds files")
        elif list(given.values()).index(value) != list(given).index(name):
            settings.report(key, f"received {show(value)}, which is already the name of another of the task's columns")


def _check_used_columns(settings: Settings, config: Config, columns: Mapping[str, Column] | None) -> None:
    """Reports columns that the task does not read, unless one of its settings is wrong."""
    if columns is None or touching(["task"], settings.reported):
        return
    used = [name for name, column in columns.items() if column.used(config.task)]
    for name in config.data.columns:
        if name in columns and name not in used:
            settings.report(
                ("data", "columns", name), f"not read with these task settings, which use {join(used, 'and')}"
            )


def _validate(settings: Settings, kind: type, values: dict[str, Any], prefix: Key, fields: Mapping[Key, Any]) -> Any:
    """Returns the section as `kind`; a wrong value is reported and replaced by its default."""
    hints = {key[len(prefix) :]: hint for key, hint in fields.items() if key[: len(prefix)] == prefix}
    remaining = deepcopy(values)
    while True:
        try:
            return _validator(kind).validate_json(json.dumps(remaining))
        except ValidationError as error:
            for key, message in describe_errors(error, hints, remaining):
                full = (*prefix, *key)
                # A key that is missing because it was wrong or misspelt has been reported.
                if full not in settings.reported or _has(remaining, key):
                    settings.report(full, message)
            if not _without_faults(remaining, error, hints):
                raise ConfigError(settings.problems) from error


_validator: Callable[[type], TypeAdapter[Any]] = cache(TypeAdapter)
"""Returns the validator of a section; building one takes longer than validating with it."""


def _has(values: Any, key: Key) -> bool:
    for name in key:
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def _without_faults(values: dict[str, Any], error: ValidationError, hints: Mapping[Key, Any]) -> bool:
    """Removes wrong values and fills in missing text; returns whether anything changed."""
    changed = False
    for detail in error.errors(include_url=False):
        holder, name, value = values, "", values
        for part in detail["loc"]:
            if not isinstance(value, dict) or part not in value:
                break
            holder, name, value = value, str(part), value[part]
        missing = tuple(map(str, detail["loc"]))
        if name in holder:
            del holder[name]
            changed = True
        elif detail["type"] == "missing" and hints.get(missing) is str:
            values[missing[0]] = STAND_IN
            changed = True
    return changed

"""Problems of settings, checks that find them, and rules: settings that cannot be combined, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, NamedTuple

from toolkit.config.messages import Key, join, show
from toolkit.config.sections import Config

Stage = Literal[
    "settings", "files", "task", "arguments", "libraries", "machine", "model", "inputs", "rows", "folder", "processes"
]
"""What a check needs: only the settings (and the launcher's environment), the files and folders that they name, the
recipe's task, what torch and transformers accept, other libraries, this machine, the model's configuration, its
processor and the data set, the first rows of the files, the output folder, or the number of processes."""


class Problem(NamedTuple):
    """One reason why a run cannot start."""

    keys: tuple[str, ...]  # dotted keys of the settings that it is about
    text: str  # the message, which begins with them: what was received, why it is wrong, and what to do

    @staticmethod
    def of(message: str) -> Problem:
        """Returns the problem of a message that begins with dotted keys and a colon."""
        return Problem(tuple(re.findall(r"[\w.]+", message.split(": ")[0])), message)


class CannotCheck(Exception):  # noqa: N818 - never shown as an error
    """Raised by a check that cannot be performed, with the reason."""


@dataclass(frozen=True)
class Check:
    """Something that is asked before a run loads weights."""

    stage: Stage  # what it needs
    about: str  # its name, shown if it could not be asked; empty for checks about which nothing is said then
    # dotted keys, or sections, of the settings that it reads. What it finds is not told if one of them is wrong by
    # itself. A test runs each check with settings that record what is read
    reads: tuple[str, ...]
    # yields problems, or messages that begin with a dotted key, from a `toolkit.checks.check.Case`
    find: Callable[[Any], Iterable[Problem | str]]


def touching(keys: Iterable[str], faulty: Iterable[Key]) -> list[Key]:
    """Returns the keys of `faulty` that equal, contain or are contained in one of `keys`."""
    parts = [tuple(key.split(".")) for key in keys]
    return sorted(each for each in faulty if any(each[: len(key)] == key or key[: len(each)] == each for key in parts))


@dataclass(frozen=True)
class Rule:
    """An invalid combination of settings."""

    when: Callable[[Config], bool]  # whether a configuration has this combination
    keys: tuple[str, ...]  # dotted keys of the settings, or sections, to name in the message
    why: str  # why the combination is invalid
    instead: str  # what to do, as an imperative that starts with "set" or "remove" and names dotted keys
    # environment variable of the launcher; if given, the rule applies only if the variable is true
    launcher: str | None = None
    # further settings that `when` reads, which are not shown; if some are in a section of `keys`, `when` reads no
    # others of this section
    with_: tuple[str, ...] = ()

    @property
    def check(self) -> Check:
        """The rule as a check."""
        shown = (key for key in self.keys if not any(other.startswith(f"{key}.") for other in self.with_))
        return Check("settings", "", (*shown, *self.with_), self._find)

    def _find(self, case: Any) -> Iterator[Problem]:
        if self.launcher is not None and case.environ.get(self.launcher, "").lower() not in _TRUE:
            return
        if self.when(case.cfg):
            shown = dict(pair for key in self.keys for pair in _changed(key, value_of(case.cfg, key)))
            named = ", ".join(f"{key} ({value})" for key, value in shown.items())
            yield Problem(tuple(shown), f"{named}: {self.why}; {self.instead}")


_TRUE = {"1", "on", "t", "true", "y", "yes"}
CHANGED = object()
"""For `clash`: any value but the default."""


def several(size: int) -> bool:
    """For `clash`: whether a number is above 1."""
    return size > 1


def clash(
    settings: Mapping[str, Any], why: str, instead: str, besides: Mapping[str, Any] | None = None, launcher: str = ""
) -> Rule:
    """Returns the rule that settings, by dotted key, cannot have certain values together.

    A value is given as itself, as a tuple of several, as `CHANGED`, or as a function that says whether it is meant.
    Settings `besides` are not shown; `launcher` as in `Rule`.
    """
    conditions = {**settings, **(besides or {})}

    def when(config: Config) -> bool:
        return all(is_meant(config, key, meant) for key, meant in conditions.items())

    return Rule(when, tuple(settings), why, instead, launcher or None, tuple(besides or ()))


def is_meant(config: Config, key: str, meant: Any) -> bool:
    """Whether a setting has a value that is given as for `clash`."""
    value = value_of(config, key)
    if meant is CHANGED:
        section, _, name = key.rpartition(".")
        return bool(value != getattr(type(value_of(config, section))(), name))
    if callable(meant):
        return bool(meant(value))
    return bool(value in meant if isinstance(meant, tuple) else value == meant)


def only_if(key: str, needed: str, condition: Callable[[Any], bool], why: str, instead: str) -> Rule:
    """Returns the rule that the setting `key`, if it is changed, needs a `condition` on the setting `needed`.

    `why` says why it has no effect otherwise, `instead` how to set the other one; the message also suggests removing
    it.
    """
    return clash({key: CHANGED, needed: lambda value: not condition(value)}, why, f"{instead}, or remove {key}")


def unused_options(options: Any, key: str, users: Mapping[str, Collection[Any]]) -> list[str]:
    """Returns a full message for each changed option of a task that has no effect with the value of `key`.

    `users` has, for each dependent option, the values of `key` with which it has an effect.
    """
    chosen, default = getattr(options, key), type(options)()
    return [
        f"task.{name}: has no effect with task.{key} {show(chosen)}; set task.{key} to {join([*map(show, values)])}, "
        "or remove it"
        for name, values in users.items()
        if chosen not in values and getattr(options, name) != getattr(default, name)
    ]


def _changed(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields a key and its value as text; for a section, those of its settings that differ from their defaults."""
    if not is_dataclass(value) or isinstance(value, type):
        yield key, show(value)
        return
    default = type(value)()
    for name in (field.name for field in fields(value)):
        if getattr(value, name) != getattr(default, name):
            yield from _changed(f"{key}.{name}", getattr(value, name))


def value_of(config: Config, key: str) -> Any:
    """Returns the value of a setting by its dotted key."""
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value

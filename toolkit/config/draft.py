"""A configuration as it was read, and where a message about it belongs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.base.errors import ConfigError
from toolkit.config.keys import _flat
from toolkit.config.messages import Key
from toolkit.config.sections import Config
from toolkit.config.source import Origin, Settings


@dataclass(frozen=True)
class Loaded:
    """A valid configuration.

    Args:
        config: all settings; nothing is left to the launcher any more.
        origins: for every key of `flatten(config)`, where its value came from.
    """

    config: Config
    origins: Mapping[str, Origin]


@dataclass(frozen=True)
class Draft:
    """A configuration as it was read, right or wrong.

    Args:
        config: all settings; a wrong value is replaced by its default, so that everything else can still be checked.
        problems: what is wrong, one message each.
        faulty: keys whose value is wrong. What follows from their defaults must not be reported.
        settings: the values as given, and where each came from.
    """

    config: Config
    problems: tuple[str, ...]
    faulty: frozenset[Key]
    settings: Settings

    def loaded(self) -> Loaded:
        """Returns the configuration if nothing is wrong.

        Raises:
            ConfigError: with all problems.
        """
        if self.problems:
            raise ConfigError(list(self.problems))
        origins = {".".join(key): self.settings.origin(key) for key, _ in _flat(self.config)}
        return Loaded(self.config, origins)

    def located(self, message: str) -> str:
        """Returns a message that begins with dotted keys, after the place where one of them was given."""
        return located(self.settings, message)


def keys_in(message: str) -> list[Key]:
    """Returns what may be dotted keys in a message."""
    return [tuple(word.split(".")) for word in re.findall(r"[a-z]\w*(?:\.\w+)+|^\w+(?=:)", message)]


def located(settings: Settings, message: str) -> str:
    """Puts before a message the place where one of the keys that it begins with was given, at best an override."""
    keys = [tuple(word.split(".")) for word in re.findall(r"[\w.]+", message.split(": ")[0])]
    given = [
        source
        for key in keys
        for other, source in settings.sources.items()
        if other[: len(key)] == key and source.origin != "default"
    ]
    given.sort(key=lambda source: source.origin != "override")
    return f"{(given or [settings.source(keys[0])])[0].place}: {message}"

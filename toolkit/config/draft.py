"""A configuration as it was read, right or wrong, and the source of each of its values."""

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
        config: all settings, those of the launcher included.
        origins: the origin of the value of each key of `flatten(config)`.
    """

    config: Config
    origins: Mapping[str, Origin]


@dataclass(frozen=True)
class Draft:
    """A configuration as it was read, right or wrong.

    Args:
        config: all settings; a wrong value is replaced by its default, so that everything else can still be checked.
        problems: one message per problem.
        faulty: keys whose value is wrong. Problems that follow from their defaults must not be reported.
        settings: the values as given, and their sources.
    """

    config: Config
    problems: tuple[str, ...]
    faulty: frozenset[Key]
    settings: Settings

    def loaded(self) -> Loaded:
        """Returns the configuration if it is valid.

        Raises:
            ConfigError: with all problems, if there are any.
        """
        if self.problems:
            raise ConfigError(list(self.problems))
        origins = {".".join(key): self.settings.origin(key) for key, _ in _flat(self.config)}
        return Loaded(self.config, origins)

    def located(self, message: str) -> str:
        """Returns a message that begins with dotted keys, with the place where one of them was given before it."""
        return located(self.settings, message)


def keys_in(message: str) -> list[Key]:
    """Returns the words of a message that may be dotted keys."""
    return [tuple(word.split(".")) for word in re.findall(r"[a-z]\w*(?:\.\w+)+|^\w+(?=:)", message)]


def located(settings: Settings, message: str) -> str:
    """Returns a message that begins with dotted keys, with the place where one of them was given before it.

    An override is preferred to other places.
    """
    keys = [tuple(word.split(".")) for word in re.findall(r"[\w.]+", message.split(": ")[0])]
    given = [
        source
        for key in keys
        for other, source in settings.sources.items()
        if other[: len(key)] == key and source.origin != "default"
    ]
    given.sort(key=lambda source: source.origin != "override")
    return f"{(given or [settings.source(keys[0])])[0].place}: {message}"

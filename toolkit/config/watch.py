"""Settings that note which of them are read: what was concluded from a wrong setting must not be reported."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from toolkit.config.messages import Key

T = TypeVar("T")


def watched(settings: T, read: set[Key], key: Key = ()) -> T:
    """Returns a copy of a configuration, or of a section, that adds to `read` each key whose value is asked for.

    The copy is an instance of a subclass, so that whatever takes the settings takes it too.

    Args:
        settings: a dataclass; sections inside it are watched as well.
        read: where the keys go.
        key: of `settings`.
    """
    kind: Any = type(settings)
    names = {field.name for field in dataclasses.fields(kind)}

    class Watched(kind):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name in names and not dataclasses.is_dataclass(value):
                read.add((*key, name))
            return value

        def __eq__(self, other: object) -> bool:
            read.add(key)
            return bool(settings == other)

        __hash__ = None  # type: ignore[assignment]

    Watched.__name__, Watched.__qualname__ = kind.__name__, kind.__qualname__
    clone = copy.copy(settings)
    for name in names:
        if dataclasses.is_dataclass(value := getattr(settings, name)):
            object.__setattr__(clone, name, watched(value, read, (*key, name)))
    object.__setattr__(clone, "__class__", Watched)
    return clone


def touching(keys: Iterable[Key], faulty: Iterable[Key]) -> list[Key]:
    """Returns those of `faulty` that are one of `keys`, a part of one, or what one is a part of."""
    keys = list(keys)
    return sorted(
        fault for fault in faulty if any(fault[: len(key)] == key or key[: len(fault)] == fault for key in keys)
    )

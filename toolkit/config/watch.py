"""Records which settings are read, so that no problem is reported that follows from a wrong setting."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from toolkit.config.messages import Key

T = TypeVar("T")


def watched(settings: T, read: set[Key], key: Key = ()) -> T:
    """Returns a copy of a configuration or a section that adds each key whose value is read to `read`.

    The copy is an instance of a subclass, so it can be used wherever the settings can.

    Args:
        settings: a dataclass; sections inside it are watched as well.
        read: receives the keys.
        key: the key of `settings`.
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
    """Returns the keys of `faulty` that equal, contain or are contained in one of `keys`."""
    keys = list(keys)
    return sorted(
        fault for fault in faulty if any(fault[: len(key)] == key or key[: len(fault)] == fault for key in keys)
    )

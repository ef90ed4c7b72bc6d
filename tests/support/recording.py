"""Settings that record what is read."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from toolkit.config.messages import Key

T = TypeVar("T")


def recording(settings: T, read: set[Key], key: Key = ()) -> T:
    """Returns a copy of a configuration or a section that adds each key whose value is read to `read`.

    The copy is an instance of a subclass, so it can be used wherever the settings can.
    """
    kind: Any = type(settings)
    names = {field.name for field in dataclasses.fields(kind)}

    class Recording(kind):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name in names and not dataclasses.is_dataclass(value):
                read.add((*key, name))
            return value

        def __eq__(self, other: object) -> bool:
            read.add(key)
            return bool(settings == other)

        __hash__ = None  # type: ignore[assignment]

    Recording.__name__, Recording.__qualname__ = kind.__name__, kind.__qualname__
    clone = copy.copy(settings)
    for name in names:
        if dataclasses.is_dataclass(value := getattr(settings, name)):
            object.__setattr__(clone, name, recording(value, read, (*key, name)))
    object.__setattr__(clone, "__class__", Recording)
    return clone


def undeclared(read: Iterable[Key], declared: Iterable[str]) -> list[str]:
    """Returns the keys that were read and neither contain nor are contained in a declared one."""
    known = [tuple(key.split(".")) for key in declared]
    return [".".join(key) for key in sorted(read) if not any(key[: len(k)] == k or k[: len(key)] == key for k in known)]

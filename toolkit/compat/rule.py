"""A combination of settings that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.config.sections import Config


@dataclass(frozen=True)
class Rule:
    """A combination that cannot be.

    Args:
        when: whether a configuration has it; looks only at the sections of `keys`.
        keys: the settings that it is about.
        why: why it cannot be.
        instead: what to do.
        on_cpu: whether it only counts when the launcher asks for the CPU.
    """

    when: Callable[[Config], bool]
    keys: tuple[str, ...]
    why: str
    instead: str
    on_cpu: bool = False

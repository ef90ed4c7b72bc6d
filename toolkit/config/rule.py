"""Rules: settings that cannot go together, why, and what to do instead. The rules themselves are handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.config.messages import show
from toolkit.config.sections import Config


@dataclass(frozen=True)
class Rule:
    """A combination that cannot be.

    Args:
        when: whether a configuration has it; looks only at the sections of `keys`.
        keys: the settings that it is about.
        why: why it cannot be.
        instead: what to do.
        launcher: variable of the launcher's environment; if given, the rule only counts where that is true.
    """

    when: Callable[[Config], bool]
    keys: tuple[str, ...]
    why: str
    instead: str
    launcher: str | None = None


_TRUE = {"1", "on", "t", "true", "y", "yes"}


def conflicts(
    rules: Iterable[Rule], config: Config, environ: Mapping[str, str], broken: frozenset[str] = frozenset()
) -> list[str]:
    """Returns what cannot go together, one message each, dotted key first.

    Args:
        rules: what cannot go together.
        config: the settings; sections in `broken` may be None.
        environ: the launcher's environment.
        broken: sections and top-level keys that have problems of their own: nothing is said about them.
    """
    return [
        f"{', '.join(f'{key} ({show(_value(config, key))})' for key in rule.keys)}: {rule.why}; {rule.instead}"
        for rule in rules
        if broken.isdisjoint(key.split(".")[0] for key in rule.keys)
        if rule.launcher is None or environ.get(rule.launcher, "").lower() in _TRUE
        if rule.when(config)
    ]


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value

"""Rules: settings that cannot go together, why, and what to do instead. The rules themselves are handed in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.config.messages import Key, show
from toolkit.config.sections import Config
from toolkit.config.watch import touching, watched


@dataclass(frozen=True)
class Rule:
    """A combination of settings that cannot be.

    Args:
        when: whether a configuration has it.
        keys: the settings to name in the message.
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


def only_if(key: str, unset: Any, needed: str, condition: Callable[[Any], bool], why: str, instead: str) -> Rule:
    """Returns the rule that a setting has an effect only if another one meets a condition.

    Args:
        key: dotted key of the setting.
        unset: its value where it is not used.
        needed: dotted key of the other one.
        condition: what the other one's value must meet.
        why: why the setting has no effect otherwise.
        instead: how the other one is set; removing the setting is offered as well.
    """
    return Rule(
        lambda config: value_of(config, key) != unset and not condition(value_of(config, needed)),
        (key, needed),
        why,
        f"{instead}, or remove {key}",
    )


def conflicts(
    rules: Iterable[Rule], config: Config, environ: Mapping[str, str], faulty: Collection[Key] = ()
) -> list[str]:
    """Returns what cannot go together, one message each, dotted key first.

    Args:
        rules: what cannot go together.
        config: the settings.
        environ: the launcher's environment.
        faulty: keys whose own value is wrong, and in `config` replaced by the default: a rule that reads one of them
            is not applied.
    """
    read: set[Key] = set()
    seen = watched(config, read)
    messages = []
    for rule in rules:
        if rule.launcher is not None and environ.get(rule.launcher, "").lower() not in _TRUE:
            continue
        read.clear()
        if rule.when(seen) and not touching(read, faulty):
            keys = ", ".join(f"{key} ({show(value_of(config, key))})" for key in rule.keys)
            messages.append(f"{keys}: {rule.why}; {rule.instead}")
    return messages


def value_of(config: Config, key: str) -> Any:
    """Returns the value of a setting by its dotted key."""
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value

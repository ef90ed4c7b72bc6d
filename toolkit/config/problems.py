"""Rules: which settings cannot be combined, why, and what to do instead. The rules themselves are arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from toolkit.config.messages import Key, join, show
from toolkit.config.sections import Config
from toolkit.config.watch import touching, watched


@dataclass(frozen=True)
class Rule:
    """An invalid combination of settings.

    Args:
        when: whether a configuration has this combination.
        keys: dotted keys of the settings, or sections, to name in the message.
        why: why the combination is invalid.
        instead: what to do, as an imperative that starts with "set" or "remove" and names dotted keys.
        launcher: environment variable of the launcher; if given, the rule applies only if the variable is true.
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
        unset: its value when it is not used.
        needed: dotted key of the other setting.
        condition: the condition on the value of the other setting.
        why: why the setting has no effect otherwise.
        instead: how to set the other one; the message also suggests removing the setting.
    """
    return Rule(
        lambda config: value_of(config, key) != unset and not condition(value_of(config, needed)),
        (key, needed),
        why,
        f"{instead}, or remove {key}",
    )


def unused_options(options: Any, key: str, users: Mapping[str, Collection[Any]]) -> list[str]:
    """Returns a full message for each changed option of a task that has no effect with the value of another one.

    Args:
        options: the task's options.
        key: name of the option that others depend on.
        users: for each dependent option, the values of `key` with which it has an effect.
    """
    chosen, default = getattr(options, key), type(options)()
    return [
        f"task.{name}: has no effect with task.{key} {show(chosen)}; set task.{key} to {join([*map(show, values)])}, "
        "or remove it"
        for name, values in users.items()
        if chosen not in values and getattr(options, name) != getattr(default, name)
    ]


def conflicts(
    rules: Iterable[Rule], config: Config, environ: Mapping[str, str], faulty: Collection[Key] = ()
) -> list[str]:
    """Returns one message, dotted key first, for each rule that the settings break.

    Args:
        rules: the rules to check.
        config: the settings.
        environ: the environment variables of the launcher.
        faulty: keys whose value is wrong by itself and was replaced by the default in `config`; rules that read one of
            them are not applied.
    """
    read: set[Key] = set()
    seen = watched(config, read)
    messages = []
    for rule in rules:
        if rule.launcher is not None and environ.get(rule.launcher, "").lower() not in _TRUE:
            continue
        read.clear()
        if rule.when(seen) and not touching(read, faulty):
            keys = ", ".join(text for key in rule.keys for text in _named(key, value_of(config, key)))
            messages.append(f"{keys}: {rule.why}; {rule.instead}")
    return messages


def _named(key: str, value: Any) -> Iterator[str]:
    """Yields a key with its value; for a section, those of its settings that differ from their defaults."""
    if not is_dataclass(value) or isinstance(value, type):
        yield f"{key} ({show(value)})"
        return
    default = type(value)()
    for name in (field.name for field in fields(value)):
        if getattr(value, name) != getattr(default, name):
            yield from _named(f"{key}.{name}", getattr(value, name))


def value_of(config: Config, key: str) -> Any:
    """Returns the value of a setting by its dotted key."""
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value

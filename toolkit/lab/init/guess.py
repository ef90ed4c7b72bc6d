"""A guessed setting, and how a YAML of them is written."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.config.keys import to_yaml

SECTIONS = (
    *("output_dir", "engine", "seed", "task", "model", "data", "train", "parallel", "eval", "checkpoint"),
    *("tracking", "trainer"),
)
"""The order of settings in the YAML."""
WIDTH = 100


@dataclass(frozen=True)
class Guess:
    """A setting of the new YAML.

    Args:
        key: dotted key.
        value: its value.
        reason: why it has this value, a comment beside it; may be empty.
    """

    key: str
    value: Any
    reason: str = ""


def to_text(title: Sequence[str], guesses: Iterable[Guess]) -> str:
    """Returns a YAML file in which the reason of every setting is a comment, beside it or, if it is long, above it.

    Args:
        title: the first lines, each a comment.
        guesses: the settings; those of a section are written together, in this order.
    """
    lines = [f"# {line}" for line in title]
    opened: list[str] = []
    for guess in sorted(guesses, key=lambda guess: SECTIONS.index(guess.key.split(".")[0])):
        *groups, name = guess.key.split(".")
        if not groups or groups[:1] != opened[:1]:
            lines.append("")
        same = next((n for n, pair in enumerate(zip(groups, opened, strict=False)) if pair[0] != pair[1]), None)
        known = min(len(groups), len(opened)) if same is None else same
        lines += [f"{'  ' * depth}{group}:" for depth, group in enumerate(groups) if depth >= known]
        opened = groups
        lines += _setting("  " * len(groups), name, guess)
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Returns a value as YAML; a small number as people write it, `5.0e-5`."""
    short = f"{value:.1e}".replace("e-0", "e-") if isinstance(value, float) and value < 1e-3 else ""
    return short if short and float(short) == value else to_yaml(value)


def _setting(indent: str, name: str, guess: Guess) -> list[str]:
    line = f"{indent}{to_yaml(name)}: {_value(guess.value)}"
    # YAML allows no control characters, not even in a comment.
    reason = "".join(letter if letter.isprintable() else "?" for letter in " ".join(guess.reason.split()))
    if not reason:
        return [line]
    if len(line) + len("  # ") + len(reason) <= WIDTH:
        return [f"{line}  # {reason}"]
    above = textwrap.wrap(reason, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    return [*above, line]

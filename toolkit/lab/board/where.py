"""Conditions on runs: `--where "train.learning_rate>1e-4"`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.base.errors import InputError
from toolkit.lab.board.entry import Entry, refuse_unknown, text_of

_FORM = re.compile(r"\s*([^\s=!<>]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*")
_WORDS = {"true": True, "false": False, "null": None}
ORDERED: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Comparisons of numbers; `=`, `==` and `!=` compare any values."""


@dataclass(frozen=True)
class Condition:
    """A condition on one setting or result.

    Args:
        name: name of the setting or result.
        sign: the comparison.
        value: the value to compare with.
    """

    name: str
    sign: str
    value: Any

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Returns whether a run meets the condition; one without such a number is in no order with any."""
        found = values.get(self.name)
        if self.sign in ORDERED:
            if not isinstance(found, int | float) or isinstance(found, bool):
                return False
            return ORDERED[self.sign](found, self.value)
        return _equal(found, self.value) == (self.sign != "!=")


def parse(text: str) -> Condition:
    """Reads a condition.

    Raises:
        InputError: if it is not a name, a comparison and a value, or compares the order of something else than numbers.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InputError(
            f"--where: received {text!r}, expected a name, one of = != < <= > >=, and a value, such as "
            "'train.learning_rate>1e-4' (quoted, and after FOLDER)"
        )
    name, sign, words = match.groups()
    value = _value(words)
    if sign in ORDERED and not isinstance(value, float):
        raise InputError(f"--where: received {text!r}, but {words!r} is not a number; {sign} compares numbers")
    return Condition(name, sign, value)


def chosen(entries: Sequence[Entry], texts: Sequence[str]) -> list[Entry]:
    """Returns the runs that meet all conditions.

    Raises:
        InputError: if a condition cannot be read, or names what no run has.
    """
    conditions = [parse(text) for text in texts]
    refuse_unknown([condition.name for condition in conditions], entries, "--where")
    return [entry for entry in entries if all(condition.holds(entry.values) for condition in conditions)]


def _value(words: str) -> Any:
    if words in _WORDS:
        return _WORDS[words]
    try:
        return float(words)
    except ValueError:
        return words.strip("'\"")


def _equal(found: Any, wanted: Any) -> bool:
    if wanted is None or isinstance(wanted, bool):
        return found is wanted
    if isinstance(wanted, float):
        return type(found) in (int, float) and found == wanted
    return text_of(found) == wanted

"""Finds labels whose spelling differs so little that they may be meant as one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

NUMBERS = dict(
    zip(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
        map(str, range(11)),
        strict=True,
    )
)
"""English words for small numbers."""
_IGNORED = re.compile(r"[\W_]+")


def near_equal(labels: Iterable[str]) -> list[list[str]]:
    """Returns the groups of labels that differ only in case, accents, blanks and punctuation, or as `five` and `5`.

    Labels without any letter are left alone, since `-1` and `1` are different numbers.
    """
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(_plain(label), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def _plain(label: str) -> str:
    if not any(character.isalpha() for character in label):
        return label
    plain = unicodedata.normalize("NFKD", label.casefold())
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    # Without any letter or digit, nothing is left to compare.
    plain = _IGNORED.sub("", plain) or label
    return NUMBERS.get(plain, plain)

"""A certificate: the result of checking one promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

OK, FAILED, OPEN = "ok", "FAILED", "open"
"""Verdicts; `open` means that this model or these rows allow neither of the others."""


@dataclass(frozen=True)
class Certificate:
    """The result of checking one promise.

    Args:
        name: name on the command line.
        promise: the promise, as one sentence.
        verdict: `OK`, `FAILED` or `OPEN`.
        found: what was measured, as sentences.
        problems: what is wrong and where to look, as sentences; for `OPEN`, why the promise could not be checked.
        figures: the measurements as JSON values.
    """

    name: str
    promise: str
    verdict: str
    found: Sequence[str]
    problems: Sequence[str] = ()
    figures: dict[str, Any] = field(default_factory=dict)

"""One certificate: what was found about one promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

OK, FAILED, OPEN = "ok", "FAILED", "open"
"""Verdicts; `open` is neither: this model or these rows cannot show it."""


@dataclass(frozen=True)
class Certificate:
    """What was found about one promise.

    Args:
        name: as on the command line.
        promise: what should be so, as one sentence.
        verdict: `OK`, `FAILED` or `OPEN`.
        found: what was measured, as sentences.
        problems: what is wrong and where to look, as sentences; for `OPEN` why it could not be shown.
        figures: the same as JSON-able numbers.
    """

    name: str
    promise: str
    verdict: str
    found: Sequence[str]
    problems: Sequence[str] = ()
    figures: dict[str, Any] = field(default_factory=dict)

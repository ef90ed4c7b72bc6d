"""Certificates: what this toolkit promises, proved on a person's own model and rows.

`toolkit.certificates.jobs` runs small trainings of a cut of the rows, each promise has a file that says which ones it
needs and judges what came out, and `toolkit.commands.certify` puts both together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.certificates.jobs import Cut, Job

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


@dataclass(frozen=True)
class Promise:
    """One kind of certificate.

    Args:
        jobs: the trainings that it looks at.
        judge: makes the certificate from the folder that they were run in.
    """

    jobs: Callable[[Cut], list[Job]]
    judge: Callable[[Path, Cut], Certificate]


def promises() -> dict[str, Promise]:
    """Returns all kinds by their names on the command line."""
    from toolkit.certificates import engines, loss_scale, ranks, resume

    return {
        "loss-scale": Promise(loss_scale.jobs, loss_scale.judge),
        "engines": Promise(engines.jobs, engines.judge),
        "resume": Promise(resume.jobs, resume.judge),
        "ranks": Promise(ranks.jobs, ranks.judge),
    }

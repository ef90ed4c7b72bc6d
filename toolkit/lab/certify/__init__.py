"""Certificates: what this toolkit promises, proved on a person's own model and rows.

`toolkit.lab.certify.jobs` runs small trainings of a cut of the rows, each promise has a file that says which ones it
needs and judges what came out, and `toolkit.commands.certify` puts both together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.lab.certify.certificate import Certificate

if TYPE_CHECKING:
    from toolkit.lab.certify.jobs import Cut, Job


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
    from toolkit.lab.certify import engines, loss_scale, ranks, resume

    return {
        "loss-scale": Promise(loss_scale.jobs, loss_scale.judge),
        "engines": Promise(engines.jobs, engines.judge),
        "resume": Promise(resume.jobs, resume.judge),
        "ranks": Promise(ranks.jobs, ranks.judge),
    }

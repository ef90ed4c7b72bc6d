"""Certificates: verify the toolkit's guarantees on your model and data.

`toolkit.lab.certify.trainings` trains on a few rows. Each promise lists the trainings it needs and checks their
results, in `promises` and `strategy`. `toolkit.commands.runs` runs both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.lab.certify.certificate import Certificate

if TYPE_CHECKING:
    from toolkit.lab.certify.trainings import Experiment, Training


@dataclass(frozen=True)
class Promise:
    """One kind of certificate.

    Args:
        trainings: returns the trainings to compare.
        judge: returns the certificate, given the folder of the trainings.
    """

    trainings: Callable[[Experiment], list[Training]]
    judge: Callable[[Path, Experiment], Certificate]


def load_promises() -> dict[str, Promise]:
    """Returns all kinds of certificates by their names on the command line."""
    from toolkit.lab.certify import promises, strategy

    return {
        "loss-scale": Promise(promises.loss_scale_trainings, promises.loss_scale_judge),
        "engines": Promise(promises.engines_trainings, promises.engines_judge),
        "resume": Promise(promises.resume_trainings, promises.resume_judge),
        "ranks": Promise(promises.ranks_trainings, promises.ranks_judge),
        "strategy": Promise(strategy.trainings, strategy.judge),
    }

"""Certificates: verify the toolkit's guarantees on your model and data.

`toolkit.lab.certify.trainings` trains on a few rows. Each promise lists the trainings it needs and checks their
results, in `promises` and `strategy`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.lab.certify.certificate import Certificate, Certificates
    from toolkit.lab.certify.trainings import Experiment, Training
    from toolkit.lab.tool import Request


@dataclass(frozen=True)
class Promise:
    """One kind of certificate."""

    trainings: Callable[[Experiment], list[Training]]  # returns the trainings to compare
    judge: Callable[[Path, Experiment], Certificate]  # returns the certificate, given the folder of the trainings


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


def certify(
    request: Request, names: Sequence[str], rows: int, kill_at: int | None, strategies: Sequence[str], keep: bool
) -> Certificates:
    """Runs the trainings of certificates on `rows` rows and judges them; `keep` keeps the runs.

    A run is killed at the end of step `kill_at` (None: a random one); `strategies` are compared with one process
    (empty: those that the model allows on two). Raises ToolkitError if the settings are invalid or a training cannot
    run.
    """
    from toolkit.lab.certify.certificate import Certificates
    from toolkit.lab.certify.strategy import strategies_of
    from toolkit.lab.certify.trainings import Experiment, check_trainings, run_trainings

    experiment = Experiment(
        recipe=request.job["recipe"],
        config=request.job["config"],
        overrides=request.overrides,
        cfg=request.cfg,
        rows=rows,
        kill_at=kill_at,
        kill_after=random.uniform(1.2, 1.9),  # in the second epoch, which has another row order
        strategies=strategies or strategies_of(request.cfg, request.task_type(request.cfg)),
    )
    chosen = [promise for name, promise in load_promises().items() if name in names]
    trainings = [training for promise in chosen for training in promise.trainings(experiment)]
    check_trainings(trainings, experiment)
    output, began = request.make_output(again=True), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="certify-") as name:
        runs = output / "runs" if keep else Path(name)
        if keep:
            shutil.rmtree(runs, ignore_errors=True)
            runs.mkdir()
        run_trainings(trainings, experiment, runs)
        found = [promise.judge(runs, experiment) for promise in chosen]
    return Certificates.of(found, request, rows, time.monotonic() - began)

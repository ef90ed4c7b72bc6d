"""Certificate `ranks`: metrics and predictions do not depend on processes or batch size (contract C4)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from toolkit.base.run_folder import RunFolder
from toolkit.lab.certify.certificate import FAILED, OK, OPEN, Certificate
from toolkit.lab.certify.trainings import NO_UPDATE, Experiment, Training, error_of

ranks_promise = "Metrics and predictions are the same on one, two and three processes, at any batch size."
BATCHES = {1: 8, 2: 3, 3: 5}
"""Rows per evaluation batch, by the number of processes."""
TOLERANCE = 1e-5


def ranks_trainings(experiment: Experiment) -> list[Training]:
    """Returns a training, and evaluations of its model: runs of one step with learning rate 0."""
    still = NO_UPDATE | {"train.max_steps": 1}
    # A run cannot start from saved adapters, so with adapters the initial model is evaluated.
    model_of = "loop-1" if experiment.cfg.model.peft.method == "none" else None
    return [Training("loop-1", {"engine": "loop"})] + [
        Training(f"ranks-{processes}", still | {"eval.per_device_eval_batch_size": batch}, processes, model_of=model_of)
        for processes, batch in BATCHES.items()
    ]


def ranks_judge(folder: Path, experiment: Experiment) -> Certificate:
    """Compares the metrics, then the predictions row by row."""
    name = "ranks"
    if not experiment.evaluated:
        return Certificate(
            name, ranks_promise, OPEN, [], ["there are no validation rows to predict (data.validation_split)"]
        )
    if error := error_of(folder, "loop-1", *(f"ranks-{processes}" for processes in BATCHES)):
        return Certificate(name, ranks_promise, FAILED, [], [error])
    one = _results(folder / "ranks-1")
    problems = []
    for processes in list(BATCHES)[1:]:
        metrics, rows = _results(folder / f"ranks-{processes}")
        wrong = [number for number, (a, b) in enumerate(zip(one[1], rows, strict=False)) if not close(a, b)]
        if len(one[1]) != len(rows):
            problems.append(f"{processes} processes predicted {len(rows)} rows instead of {len(one[1])}")
        elif wrong:
            moved = all(any(close(row, other) for other in rows) for row in one[1])
            cause = "the same predictions are in other rows" if moved else "some rows were lost or predicted twice"
            problems.append(
                f"{processes} processes: {len(wrong)} of {len(rows)} rows have other predictions, first row "
                f"{wrong[0] + 1}: {cause}. Gathered predictions must be ordered by their row ids, not cut to length "
                "(toolkit/engine/evaluation.py)"
            )
        elif other := [key for key, value in metrics.items() if not close(value, one[0][key])]:
            problems.append(
                f"{processes} processes: the same predictions, but {other[0]} is {metrics[other[0]]} instead of "
                f"{one[0][other[0]]}: look at how it is averaged over processes (Task.metrics, engine/evaluation.py)"
            )
    figures = {"rows": len(one[1]), "metrics": one[0]}
    found = [f"{len(one[0])} metrics and {len(one[1])} predictions on 1, 2 and 3 processes agree to {TOLERANCE:g}"]
    return Certificate(name, ranks_promise, FAILED if problems else OK, [] if problems else found, problems, figures)


def _results(run: Path) -> tuple[dict[str, float], list[Any]]:
    """Returns the metrics of a run's last evaluation, and its predictions."""
    files = RunFolder(run)
    lines = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    metrics = next(line for line in reversed(lines) if "eval_loss" in line)
    rows = [json.loads(line) for line in files.predictions("validation").read_text().splitlines()]
    return {name: value for name, value in metrics.items() if name.startswith("eval_")}, rows


def close(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal, with numbers equal to within `TOLERANCE`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)

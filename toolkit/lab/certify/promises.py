"""The certificates `loss-scale`, `ranks`, `engines` and `resume`: which trainings each compares, and how."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.base.run_folder import RunFolder
from toolkit.lab.certify.certificate import FAILED, OK, OPEN, Certificate
from toolkit.lab.certify.trace import (
    DEPENDENCE,
    first_difference,
    read_gradients,
    read_trace,
    weight_difference,
    window,
)
from toolkit.lab.certify.trainings import NO_UPDATE, Experiment, Training, error_of

loss_scale_promise = "One update is the same however its window is split over micro-batches and processes."
SPLITS = {"8x1": (8, 1, 1), "4x2": (4, 2, 1), "2x4": (2, 4, 1), "2 processes x 2x2": (2, 2, 2)}
"""Rows per micro-batch, micro-batches and processes of each split of a window."""
REFERENCE = "8x1"
RATIO, COSINE = 1e-3, 1e-4
"""Largest distance from 1 of a ratio of norms and of a cosine; float32 sums depend on the order of additions."""


def loss_scale_trainings(experiment: Experiment) -> list[Training]:
    """Returns one epoch without updates in every split, and one step of the plain Trainer in two splits."""
    settings: dict[str, Any] = {
        **NO_UPDATE,  # all gradients are computed with the same parameters
        "train.max_grad_norm": 0.0,
        **({"data.max_eval_samples": 1} if experiment.evaluated else {}),
    }
    made = []
    for name, (batch, accumulation, processes) in SPLITS.items():
        split: dict[str, Any] = {
            "train.per_device_train_batch_size": batch,
            "train.gradient_accumulation_steps": accumulation,
        }
        if name == REFERENCE:
            split["train.max_tokens_per_batch"] = None  # a token budget cuts the windows of all others
        made.append(Training(_name(name), settings | split, processes, no_dropout=True, gradients=True))
        if name in ("8x1", "2x4") and not experiment.own_forward:
            made.append(Training(f"plain-{name}", settings | split, plain=True, no_dropout=True, gradients=True))
    return made


def _name(split: str) -> str:
    return f"split-{split.replace(' ', '-')}"


def compare(folder: Path, one: str, other: str) -> list[tuple[int, float, float]]:
    """Returns step, ratio of norms and cosine of the gradients of two trainings, for every step."""
    left, right = read_gradients(folder, one), read_gradients(folder, other)
    rows = []
    for step, (norm, sample) in left.items():
        other_norm, other_sample = right[step]
        lengths = float(np.linalg.norm(sample) * np.linalg.norm(other_sample))
        cosine = float(sample @ other_sample) / lengths if lengths else float("nan")
        rows.append((step, other_norm / norm if norm else float("nan"), cosine))
    return rows


def loss_scale_judge(folder: Path, experiment: Experiment) -> Certificate:
    """Compares the gradients of all windows in each split with those of unsplit windows."""
    name, reference = "loss-scale", _name(REFERENCE)
    if error := error_of(folder, *(training.name for training in loss_scale_trainings(experiment))):
        return Certificate(name, loss_scale_promise, FAILED, [], [error])
    problems, figures = [], {}
    for split in list(SPLITS)[1:]:
        rows = compare(folder, reference, _name(split))
        bad = [row for row in rows if not (abs(row[1] - 1) <= RATIO and row[2] >= 1 - COSINE)]
        worst = max(bad or rows, key=lambda row: max(abs(row[1] - 1), 1 - row[2]))
        figures[split] = {"ratio": worst[1], "cosine": worst[2], "windows": len(rows)}
        if bad:
            where = "every window" if len(bad) == len(rows) else f"{len(bad)} of {len(rows)} windows"
            problems.append(
                f"{split} against 8x1: in {where} the update differs: ratio {worst[1]:.3f}, cosine {worst[2]:.5f} "
                f"in window {worst[0]}. Look at the loss: it must be summed over all items of the window and divided "
                "by their number once (Task.loss_sum, Task.count_items), not averaged per micro-batch"
            )
    worst_ratio = max((f["ratio"] for k, f in figures.items() if k in SPLITS), key=lambda r: abs(r - 1))
    found = [
        f"8x1, 4x2, 2x4 and two processes: ratio {worst_ratio:.3f}, "
        f"cosine {min(f['cosine'] for k, f in figures.items() if k in SPLITS):.5f} in the worst of "
        f"{len(read_gradients(folder, reference))} windows"
    ]
    if not experiment.own_forward:
        plain = compare(folder, "plain-8x1", "plain-2x4")[0]
        figures["transformers.Trainer 2x4"] = {"ratio": plain[1], "cosine": plain[2], "windows": 1}
        found.append(f"transformers.Trainer by itself, 2x4 against 8x1: ratio {plain[1]:.3f}, cosine {plain[2]:.5f}")
    reasons = json.loads((folder / "traces" / reference / DEPENDENCE).read_text())
    if problems and reasons:
        reasons = [f"this model depends on the batch: {reason}" for reason in reasons]
        return Certificate(name, loss_scale_promise, OPEN, found, reasons, figures)
    return Certificate(name, loss_scale_promise, FAILED if problems else OK, found, problems, figures)


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


engines_promise = "The same YAML trains the same under both engines, on one process and on two."
TWO = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 2}
CAUSES = {
    "step": "one of them skipped steps",
    "rows": "the order of the rows (toolkit/data/batching/order.py)",
    "learning_rate": "the schedule (toolkit/optim/schedules.py), which is stepped once per update",
    "num_items": "the number of items (Task.count_items)",
    "random": "something draws from the global random numbers besides the model",
    "loss_sum": "the loss (Task.loss_sum), or parameters that differ already",
    "grad_norm": "the gradient: its scale, exchange or clipping",
}
"""The compared values of each step, causes before effects, and the likely reason for a difference in each."""


def engines_trainings(experiment: Experiment) -> list[Training]:
    """Returns trainings with both engines, on one and on two processes."""
    return [
        Training(f"{engine}-{processes}", {"engine": engine} | (TWO if processes == 2 else {}), processes)
        for processes in (1, 2)
        for engine in ("loop", "trainer")
    ]


def engines_judge(folder: Path, experiment: Experiment) -> Certificate:
    """Compares rows, learning rates, losses, gradient norms and parameters."""
    name = "engines"
    if error := error_of(folder, *(training.name for training in engines_trainings(experiment))):
        return Certificate(name, engines_promise, FAILED, [], [error])
    problems = []
    for processes, where in ((1, "one process"), (2, "two processes")):
        loop, trainer = f"loop-{processes}", f"trainer-{processes}"
        parted = [
            first_difference(read_trace(folder, loop, rank), read_trace(folder, trainer, rank), CAUSES)
            for rank in range(processes)
        ]
        last = str(RunFolder(Path()).checkpoint(read_trace(folder, loop)[-1]["step"]).model)
        parted.append(weight_difference(folder / loop, folder / trainer, last))
        problems += [f"loop against trainer on {where}: {found}" for found in parted if found][:1]
    problems += _across(folder)
    steps = len(read_trace(folder, "loop-1"))
    found = [f"rows, rates, losses, gradient norms and parameters of {steps} steps agree to the last bit"]
    return Certificate(
        name, engines_promise, FAILED if problems else OK, [] if problems else found, problems, {"steps": steps}
    )


def _across(folder: Path) -> list[str]:
    """Compares rows and learning rates of one and two processes; dropout may make all other values differ."""
    one, two = read_trace(folder, "loop-1"), read_trace(folder, "loop-2")
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        if left["learning_rate"] != right["learning_rate"]:
            return [
                f"one process against two, step {left['step']}: learning rate {left['learning_rate']} against "
                f"{right['learning_rate']}: the schedule is stepped once per process, not once per update "
                "(toolkit/optim/schedules.py)"
            ]
        rows = window(folder, "loop-1", 1, index), window(folder, "loop-2", 2, index)
        if rows[0] != rows[1]:
            return [f"one process against two, step {left['step']}: rows {rows[0]} against {rows[1]}: {CAUSES['rows']}"]
    if len(one) == len(two):
        return []
    return [f"one process trained {len(one)} steps, two processes {len(two)}: {CAUSES['rows']}"]


resume_promise = "A run that is killed and resumed ends like one that was never interrupted."


def resume_trainings(experiment: Experiment) -> list[Training]:
    """Returns an uninterrupted run, one that is killed, and one that resumes it."""
    loop = {"engine": "loop"}
    # The kill could come before a checkpoint written in the background is complete: the resumed step would vary.
    killed = loop | {"checkpoint.async_save": False}
    return [
        Training("loop-1", loop),
        Training("killed", killed, killed=True),
        Training("resumed", killed | {"checkpoint.resume": "auto"}, resumes="killed"),
    ]


def resume_judge(folder: Path, experiment: Experiment) -> Certificate:
    """Compares the steps before the kill and after the resume, and the final parameters and optimizer states."""
    name = "resume"
    if error := error_of(folder, "loop-1", "killed", "resumed"):
        return Certificate(name, resume_promise, FAILED, [], [error])
    whole, before, after = (read_trace(folder, name) for name in ("loop-1", "killed", "resumed"))
    killed, start = before[-1]["step"], after[0]["step"] if after else len(whole) + 1
    figures = {"killed_at": killed, "resumed_at": start - 1, "steps": len(whole)}
    if start == 1:
        reason = f"the run was killed at step {killed}, before its first checkpoint; increase --rows or --kill-at"
        return Certificate(name, resume_promise, OPEN, [], [reason], figures)
    last = RunFolder(Path()).checkpoint(whole[-1]["step"])
    differences = [
        first_difference(whole[: len(before)], before, CAUSES),
        first_difference(whole[start - 1 :], after, CAUSES),
        weight_difference(folder / "loop-1", folder / "killed", str(last.model)),
        weight_difference(folder / "loop-1", folder / "killed", str(last.optimizer)),
    ]
    when = ("before the kill", f"after the resume at step {start - 1}", "at the end", "at the end")
    problems = [f"{when}: {difference}" for when, difference in zip(when, differences, strict=True) if difference][:1]
    found = [
        f"killed with SIGKILL at the end of step {killed}, resumed from step {start - 1}: rows, rates, random numbers, "
        f"losses, and in the end parameters and optimizer agree to the last bit with {len(whole)} uninterrupted steps"
    ]
    return Certificate(name, resume_promise, FAILED if problems else OK, [] if problems else found, problems, figures)

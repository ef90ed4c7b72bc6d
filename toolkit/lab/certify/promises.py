"""Certificate `loss-scale`: an update does not depend on how its window is split (contract C1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.lab.certify.certificate import FAILED, OK, OPEN, Certificate
from toolkit.lab.certify.trace import DEPENDENCE, read_gradients
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
        if name in ("8x1", "2x4"):
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
    plain = compare(folder, "plain-8x1", "plain-2x4")[0]
    figures["transformers.Trainer 2x4"] = {"ratio": plain[1], "cosine": plain[2], "windows": 1}
    worst_ratio = max((f["ratio"] for k, f in figures.items() if k in SPLITS), key=lambda r: abs(r - 1))
    found = [
        f"8x1, 4x2, 2x4 and two processes: ratio {worst_ratio:.3f}, "
        f"cosine {min(f['cosine'] for k, f in figures.items() if k in SPLITS):.5f} in the worst of "
        f"{len(read_gradients(folder, reference))} windows",
        f"transformers.Trainer by itself, 2x4 against 8x1: ratio {plain[1]:.3f}, cosine {plain[2]:.5f}",
    ]
    reasons = json.loads((folder / "traces" / reference / DEPENDENCE).read_text())
    if problems and reasons:
        return Certificate(
            name, loss_scale_promise, OPEN, found, [f"this model depends on the batch: {r}" for r in reasons], figures
        )
    return Certificate(name, loss_scale_promise, FAILED if problems else OK, found, problems, figures)

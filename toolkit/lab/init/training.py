"""The settings of training and evaluation that follow from the number of rows, their length and their classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from toolkit.lab.init.guess import Guess
from toolkit.lab.init.profile import Profile

EPOCHS = ((200, 10), (2_000, 5), (20_000, 3), (200_000, 2))
"""Number of epochs for at most this many training rows; 1 for more."""
ROWS_PER_STEP = 16
LEAST_STEPS = 20
"""Steps per epoch, below which fewer rows make a step."""
SHORT = 256
"""Inputs of more tokens are trained in batches of half the size."""
SMALL_DATASET = 5000
UNEVEN = 3.0
"""Classes are uneven if the largest has this many times the rows of the smallest."""
_GROUPS = {"author", "client", "customer", "document", "group", "patient", "session", "speaker", "subject", "user"}


def training(rows: int, tokens: int, learning_rate: float) -> list[Guess]:
    """Returns batch size, epochs and learning rate.

    Args:
        rows: number of training rows.
        tokens: largest number of tokens of an input; 0 if inputs are of one size.
        learning_rate: the usual one for the model.
    """
    window = ROWS_PER_STEP
    while window > 4 and rows < LEAST_STEPS * window:
        window //= 2
    parts = 2 if tokens > SHORT and window > 4 else 1
    steps = math.ceil(rows / window)
    epochs = next((epochs for most, epochs in EPOCHS if rows <= most), 1)
    found = [Guess("train.per_device_train_batch_size", window // parts, f"{steps:,} steps per epoch")]
    if parts > 1:
        why = f"{window} rows per step in {parts} parts, because inputs of {tokens} tokens take memory"
        found.append(Guess("train.gradient_accumulation_steps", parts, why))
    return [
        *found,
        Guess("train.num_train_epochs", epochs, f"{rows:,} training rows; fewer rows need more epochs"),
        Guess("train.learning_rate", learning_rate, "usual for this model"),
        Guess("train.warmup_steps", 0.1, "the first 10 % of the steps"),
        Guess("eval.per_device_eval_batch_size", 2 * window // parts),
    ]


def evaluation(labels: Mapping[str, int], single: bool) -> list[Guess]:
    """Returns when to evaluate and save, and the metric that selects the best model.

    Args:
        labels: number of rows with each label; empty if rows have none.
        single: whether each row has exactly one.
    """
    found = [Guess("eval.eval_steps", "epoch")]
    if single and labels and max(labels.values()) >= UNEVEN * min(labels.values()):
        why = "classes are uneven: accuracy would mostly measure the largest"
        found.append(Guess("eval.metric_for_best_model", "eval_f1_macro", why))
    return [
        *found,
        Guess("checkpoint.save_steps", "epoch"),
        Guess("checkpoint.save_total_limit", 1, "and the best one"),
        Guess("checkpoint.load_best_model_at_end", True, "saves the model of the best evaluation"),
    ]


def validation(rows: int) -> Guess:
    """Returns the fraction of the rows to set aside for validation."""
    fraction = 0.2 if rows < SMALL_DATASET else 0.1
    return Guess(
        "data.validation_split", fraction, f"{fraction:.0%} of {rows:,} rows, because there is no validation file"
    )


def groups(profile: Profile) -> list[Guess]:
    """Returns the column whose equal values belong together, such as a speaker or a customer, if there is one."""
    for column in profile.columns.values():
        words = set(re.findall(r"[a-z]+", column.name.lower()))
        if words & _GROUPS and 5 <= len(column.counts) < 0.9 * len(column.values) and not column.empty:
            why = f"{len(column.counts):,} values repeat: rows with the same one stay on one side of a split"
            return [Guess("data.group_column", column.name, why)]
    return []

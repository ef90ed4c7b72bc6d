"""Runs with windows whose loss is not a number: `accelerate launch non_finite_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from finishing import finish
from runs import train

from toolkit.engine.training import Session
from toolkit.tasks.heads.single_label import SingleLabel

RUN = (
    *("data.max_train_samples=40", "data.max_eval_samples=5", "train.num_train_epochs=2", "eval.eval_steps=null"),
    *("train.warmup_steps=2", "train.learning_rate=0.01", "checkpoint.save_steps=2"),
    *("model.config_overrides.hidden_dropout_prob=0.1",),
)
BAD = (4, 7)
STRATEGIES = {
    "sync": (),
    "zero1": ("parallel.zero_stage=1",),
    "fsdp": ("parallel.fsdp=2",),
    "tensor": ("parallel.tensor=2",),
    "pipeline": ("parallel.pipeline=2",),
}


@contextmanager
def bad_windows(steps: Collection[int], rank: int = 0) -> Iterator[None]:
    """Makes the losses of the windows of some steps not a number, on one process."""
    bad, window_gradient, loss_sum = [False], Session.window_gradient, SingleLabel.loss_sum

    def noted(session, batches, scale):
        bad[0] = session.state.step + 1 in steps and session.run.accelerator.process_index == rank
        try:
            return window_gradient(session, batches, scale)
        finally:
            bad[0] = False

    def spoilt(head, logits, labels):
        return loss_sum(head, logits, labels) * (math.nan if bad[0] else 1.0)

    with patch.object(Session, "window_gradient", noted), patch.object(SingleLabel, "loss_sum", spoilt):
        yield


@contextmanager
def breaking_updates(steps: Collection[int]) -> Iterator[None]:
    """Makes the updates of some steps turn a row of the embeddings that no batch uses into no numbers."""
    count_step = Session.count_step

    def spoilt(session, *arguments):
        if session.state.step + 1 in steps and not session.updates.skips:
            with torch.no_grad():
                session.bare_model.bert.embeddings.token_type_embeddings.weight[1] = math.nan
        return count_step(session, *arguments)

    with patch.object(Session, "count_step", spoilt):
        yield


def main(output: Path) -> None:
    """Trains on two processes with bad windows on one of them, with every strategy and both ways."""
    split = ("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=2")
    for name, settings in STRATEGIES.items():
        if name in ("tensor", "pipeline"):  # both processes read the same rows
            settings = (*settings, "train.per_device_train_batch_size=4")
        rank = 1 if name in ("sync", "zero1", "fsdp", "pipeline") else 0  # the last stage computes the loss
        for mode in ("skip", "rollback"):
            with bad_windows(BAD, rank):
                train("reviews", output / f"{name}-{mode}", *RUN, *split, *settings, f"train.non_finite={mode}")
    local = ("train.strategy=local_sgd", "train.local_sgd_steps=3", "train.non_finite=skip")
    for engine in ("loop", "trainer"):
        with bad_windows(BAD, 1):
            train("reviews", output / f"local-{engine}", *RUN, *split, *local, f"engine={engine}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()

"""Stops runs in this process, or starts them in another, to test that they resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from launching import Process, begin, fail_hung, launch_command
from runs import ROOT, TINY, train

from toolkit.engine.evaluation import Evaluator
from toolkit.engine.training import Session


class StoppedError(Exception):
    """Raised to stop a run as if it had been killed."""


def stopper(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Returns a function that makes runs stop before the given step; None lets them run to the end again."""

    def arm(step: int | None) -> None:
        begin = Session.begin_window

        def begin_or_stop(self, batches):
            if self.state.step + 1 == step:
                raise StoppedError
            return begin(self, batches)

        monkeypatch.undo()
        if step is not None:
            monkeypatch.setattr(Session, "begin_window", begin_or_stop)

    return arm


@contextmanager
def known_losses(*losses: float) -> Iterator[None]:
    """Makes the validation loss after each step, from the first one, that of the list."""
    evaluate = Evaluator.evaluate

    def known(self, name):
        found = evaluate(self, name)
        return replace(found, metrics={**found.metrics, "loss": losses[self.training.state.step - 1]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", known)
        yield


def train_in_legs(
    monkeypatch: pytest.MonkeyPatch, output_dir: Path, *settings: str, legs: Iterable[tuple[int | None, str]]
) -> None:
    """Trains `reviews` in several parts, each of which resumes the one before.

    Args:
        monkeypatch: pytest's fixture.
        output_dir: the run's folder.
        *settings: `section.key=value` each.
        legs: the step before which each part stops (None for the end), and its engine.
    """
    stop_before = stopper(monkeypatch)
    for step, engine in legs:
        stop_before(step)
        with nullcontext() if step is None else pytest.raises(StoppedError):
            train("reviews", output_dir, *settings, f"engine={engine}", "checkpoint.resume=auto")


def start(output_dir: Path, log: Path, *overrides: str, processes: int = 0) -> Process:
    return begin(command(output_dir, *overrides, processes=processes), log)


def wait_for_step(process: Process, output_dir: Path, step: int, log: Path) -> None:
    metrics = output_dir / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_bytes().count(b'"loss"') >= step):
        assert process.poll() is None, log.read_text()
        if time.monotonic() > deadline:
            fail_hung(process.pid, log)
        time.sleep(0.005)


LONG = ("data.max_train_samples=200", "train.num_train_epochs=4", "train.per_device_train_batch_size=4",
        "checkpoint.save_steps=5")  # fmt: skip


WINDOWS = (
    "train.per_device_train_batch_size=2",
    "train.gradient_accumulation_steps=3",
    "train.num_train_epochs=2",
    "data.max_train_samples=37",
    "data.max_eval_samples=8",
    "checkpoint.save_steps=2",
)
"""37 rows in windows of 6: seven steps per epoch, the last one short, and checkpoints in the middle of epochs."""

DROPOUT = (
    "model.config_overrides.hidden_dropout_prob=0.1",
    "model.config_overrides.attention_probs_dropout_prob=0.1",
    *WINDOWS,
)


def command(output_dir: Path, *overrides: str, processes: int = 0) -> list[str]:
    script = [str(ROOT / "recipes/reviews.py"), "--config", str(ROOT / "recipes/configs/reviews/smoke.yaml")]
    settings = [*TINY, *DROPOUT, *overrides, f"output_dir={output_dir}"]
    return launch_command([*script, *settings], processes) if processes else [sys.executable, *script, *settings]

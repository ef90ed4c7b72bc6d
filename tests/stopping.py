"""Ends runs of this process as if they had been killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest
from runs import train

from toolkit.engine.session import Session


class StoppedError(Exception):
    """Stands for whatever ended a run."""


def stopper(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Returns a function that makes runs end before they train a given step; None lets them run again."""

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


def train_in_legs(
    monkeypatch: pytest.MonkeyPatch, output_dir: Path, *settings: str, legs: Iterable[tuple[int | None, str]]
) -> None:
    """Trains `reviews` in several goes, each resumed from the one before.

    Args:
        monkeypatch: pytest's.
        output_dir: the run's folder.
        *settings: `section.key=value` each.
        legs: the step that each go is stopped before (None: it ends) and its engine.
    """
    stop_before = stopper(monkeypatch)
    for step, engine in legs:
        stop_before(step)
        with nullcontext() if step is None else pytest.raises(StoppedError):
            train("reviews", output_dir, *settings, f"engine={engine}", "checkpoint.resume=auto")

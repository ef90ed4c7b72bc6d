"""Ends runs of this process as if they had been killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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

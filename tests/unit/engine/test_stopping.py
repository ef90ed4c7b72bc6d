"""A launcher that would kill a run before its checkpoint is written is warned of."""

from __future__ import annotations

import time
from typing import Any

import pytest

from toolkit.distributed.stop import ELASTIC_TIMEOUT
from toolkit.engine import stopping
from toolkit.engine.stopping import Stopper


@pytest.mark.parametrize(
    ("environ", "warned"),
    [
        ({}, False),
        ({"TORCHELASTIC_RUN_ID": "x"}, True),
        ({"TORCHELASTIC_RUN_ID": "x", ELASTIC_TIMEOUT: "100"}, False),
        ({"TORCHELASTIC_RUN_ID": "x", ELASTIC_TIMEOUT: "a minute"}, True),
    ],
)
def test_a_step_and_a_save_are_compared_with_the_time_that_a_launcher_gives(
    environ: dict[str, str], warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", ELASTIC_TIMEOUT):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    unused: Any = None
    stopper = Stopper(unused, unused, lambda: None)
    now = [time.monotonic()]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    stopper.stepped(15.0)
    stopper.stepped(4.0)
    for _ in range(2):
        with stopper.saving():
            now[0] += 20.0
    message = "a step and a checkpoint took 35 s, but the launcher kills this run 30 s after SIGTERM: set the "
    assert caplog.text.count(message) == warned
    assert (f"{ELASTIC_TIMEOUT}=70" in caplog.text) == warned

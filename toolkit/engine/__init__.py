"""Engines turn a `Run` into a `FitResult`; all of them train on the same windows, with the same hooks around a step."""

from __future__ import annotations

from toolkit.api.run import FitResult, Run
from toolkit.base.importing import import_object

ENGINES = {"loop": "toolkit.engine.loop.fit", "trainer": "toolkit.engine.trainer.fit"}
"""Engines by the name in the YAML; each is imported when it is asked for."""


def fit(run: Run) -> FitResult:
    """Trains a run to its end, in the engine that its configuration names.

    Raises:
        RunError: before a non-finite update.
        Interrupted: after SIGTERM, once a checkpoint is written.
    """
    result: FitResult = import_object(ENGINES[run.cfg.engine])(run)
    return result
